#include "net_fixture.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <new>

namespace privsep::test {
namespace {

int failed = 0;

[[noreturn]] void broken(const char* what) {
  std::perror(what);
  std::abort();
}

Fd own_netns() {
  Fd fd(::open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) broken("open netns");
  return fd;
}

void enter(int netns) {
  if (::setns(netns, CLONE_NEWNET) != 0) broken("setns");
}

Fd new_netns() {
  Fd home = own_netns();
  if (::unshare(CLONE_NEWNET) != 0) broken("unshare");
  Fd made = own_netns();
  enter(home.get());
  return made;
}

std::string output_of(int netns, const std::string& command) {
  Fd home = own_netns();
  enter(netns);
  FILE* pipe = ::popen(("exec 2>&1; " + command).c_str(), "re");
  enter(home.get());
  if (pipe == nullptr) broken("popen");
  std::string text;
  char buffer[4096];
  while (size_t size = std::fread(buffer, 1, sizeof buffer, pipe)) text.append(buffer, size);
  ::pclose(pipe);
  return text;
}

constexpr const char* kSnapshot = R"(
ip -d -o link | sed -E 's/^[0-9]+: //; s/@[^:]*:/:/; s/\\//g
  s/(([a-z_]+_timer) +[0-9.]+|(bridge_id|designated_(root|bridge)) [0-9a-f.:]+|designated_port [0-9]+|port_id [0-9a-fx]+|port_no [0-9a-fx]+)//g
  s/ state (UNKNOWN|UP|DOWN|LOWERLAYERDOWN)//; s/NO-CARRIER,|,LOWER_UP|,M-DOWN//g; s/ promiscuity.*numtxqueues/ numtxqueues/
  s/state (forwarding|disabled) priority/priority/; s/qdisc (noop|noqueue|pfifo_fast|mq)//; s/ link-netnsid [0-9]+//
  s#link/ether (0a:58:0a:f4:02:05|02:00:00:00:00:00|02:00:00:aa:bb:cc) #LINK \1 #; s#link/ether [0-9a-f:]{17}#LINK <random>#
  s/ +/ /g' | sort
ip -o addr | sed -E 's/^[0-9]+: //; s/\\.*//; s/ (tentative|dadfailed)//g; s/ +/ /g' |
  grep -v 'inet6 fe80' | sort
ip -o -6 addr | grep -o 'fe80::858:aff:fef4:205.*scope' | sort
ip route show table all | sed -E 's/ linkdown//; s/ expires [0-9]+sec//' | grep -v 'fe80\|ff00::\|anycast' | sort
for f in ipv4/conf/all/arp_ignore ipv4/ip_forward ipv6/conf/all/forwarding ipv4/ping_group_range ipv4/ip_unprivileged_port_start; do
  echo $f = $(cat /proc/sys/net/$f); done
nft -n -s list ruleset
)";

}  // namespace

void check(bool condition, const std::string& what) {
  if (condition) return;
  ++failed;
  std::printf("FAILED: %s\n", what.c_str());
}

void check_equal(const std::string& actual, const std::string& expected, const std::string& what) {
  if (actual == expected) return;
  check(false, what);
  auto write = [](const char* path, const std::string& text) {
    FILE* file = std::fopen(path, "we");
    if (file == nullptr) broken(path);
    std::fwrite(text.data(), 1, text.size(), file);
    std::fclose(file);
  };
  char directory[] = "/tmp/net_test.XXXXXX";
  if (::mkdtemp(directory) == nullptr) broken("mkdtemp");
  std::string base = directory;
  write((base + "/expected").c_str(), expected);
  write((base + "/actual").c_str(), actual);
  std::fflush(stdout);
  if (std::system(("cd " + base + "; diff expected actual; rm -r " + base).c_str()) < 0) broken("diff");
}

int failures() { return failed; }

Pod::Pod(Addresses addresses) : pod_(new_netns()), peer_(new_netns()) {
  Fd home = own_netns();
  enter(peer_.get());
  // iproute2 names the namespace by descriptor path; a child has its own number for it.
  std::string link = "ip link set lo up; ip link add p0 mtu 1450 type veth peer name eth0 address " +
                     std::string(kPodMac) + " mtu 1450 netns /proc/" + std::to_string(::getpid()) + "/fd/" +
                     std::to_string(pod_.get()) + " && ip link set p0 up";
  enter(home.get());
  std::string made = output_of(peer_.get(), link);
  check(made.empty(), "veth: " + made);
  // Duplicate address detection only delays; the peer has none of the addresses.
  std::string up = "sysctl -qw net.ipv6.conf.all.accept_dad=0 net.ipv6.conf.default.accept_dad=0 "
                   "net.ipv6.conf.eth0.accept_dad=0; ip link set lo up; ip link set eth0 up;";
  if (addresses != Addresses::kNone)
    up += "ip addr add 10.244.2.5/24 brd + dev eth0; ip route add default via 10.244.2.1;";
  if (addresses == Addresses::kDual)
    up += "ip -6 addr add fd00:10:244:2::5/64 dev eth0 nodad; ip -6 route add default via fd00:10:244:2::1;";
  made = output_of(pod_.get(), up);
  check(made.empty(), "addresses: " + made);
}

void Pod::add_secondary(const std::string& name, const std::string& mac) {
  std::string made = output_of(
      pod_.get(), "ip link add " + name + " address " + mac + " mtu 1500 type veth peer name p" + name.substr(3, 5) +
                      " netns /proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(peer_.get()) +
                      " && ip link set " + name + " up");
  check(made.empty(), "secondary: " + made);
  made = output_of(peer_.get(), "ip link set p" + name.substr(3, 5) + " up");
  check(made.empty(), "secondary: " + made);
}

std::string Pod::run(const std::string& command) const { return output_of(pod_.get(), command); }

std::string Pod::snapshot() const { return run(kSnapshot); }

Pod::Outcome Pod::apply(const NetworkPlan& plan, const Fault& fault) const {
  void* memory = ::mmap(nullptr, sizeof(Outcome), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) broken("mmap");
  auto* shared = new (memory) Outcome{Outcome::Kind::kKilled, 0, false, 0, 0};
  std::fflush(stdout);
  pid_t child = ::fork();
  if (child < 0) broken("fork");
  if (child == 0) {
    enter(pod_.get());
    StepHook hook = [&](const std::string& operation) {
      int injected = fault ? fault(++shared->steps, operation) : (++shared->steps, 0);
      if (injected == kKill) ::_exit(0);
      if (injected != 0) ++shared->faults;
      return injected;
    };
    Result<bool> result = apply_plan(plan, hook);
    shared->kind = !result ? Outcome::Kind::kFailed : *result ? Outcome::Kind::kChanged : Outcome::Kind::kUnchanged;
    shared->code = result ? 0 : result.error().code;
    shared->unchanged = !result && result.error().unchanged;
    if (!result && !fault) std::printf("apply: %s (errno %d)\n", result.error().operation.c_str(), result.error().code);
    std::fflush(stdout);
    ::_exit(0);
  }
  int status = 0;
  if (::waitpid(child, &status, 0) != child) broken("waitpid");
  check(WIFEXITED(status) && WEXITSTATUS(status) == 0, "apply ended by itself");
  Outcome outcome = *shared;
  ::munmap(memory, sizeof(Outcome));
  return outcome;
}

bool kernel_has_dummy() {
  Fd netns = new_netns();
  return output_of(netns.get(), "ip link add probe type dummy").empty();
}

NetworkPlan bridge_plan() {
  AttachmentPlan attachment;
  attachment.pod_interface = "eth0";
  attachment.primary = true;
  NetworkPlan plan;
  plan.attachments.push_back(attachment);
  plan.uid = plan.gid = 107;
  return plan;
}

NetworkPlan masquerade_plan() {
  NetworkPlan plan = bridge_plan();
  MasqueradePlan masquerade;
  masquerade.ipv4 = {"10.0.2.0", 24};
  masquerade.ipv6 = {"fd10:0:2::", 120};
  plan.attachments[0].masquerade = masquerade;
  return plan;
}

}  // namespace privsep::test
