#include "net_fixture.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <new>
#include <set>
#include <sstream>

#include "check.h"

namespace privsep::test {
namespace {

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

// The address comes when the kernel has noticed the carrier.
std::string await_link_local(const std::string& link) {
  return "for i in $(seq 200); do ip -6 addr show dev " + link +
         " | grep -q fe80 && exit; sleep 0.02; done; echo no fe80";
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

bool check_that(bool holds, const std::string& what) { return check(holds, what.c_str(), __FILE__, __LINE__); }

bool check_equal(const std::string& actual, const std::string& expected, const std::string& what) {
  if (check_that(actual == expected, what)) return true;
  auto lines = [](const std::string& text) {
    std::multiset<std::string> all;
    std::istringstream stream(text);
    for (std::string line; std::getline(stream, line);) all.insert(line);
    return all;
  };
  std::multiset<std::string> is = lines(actual);
  std::multiset<std::string> should = lines(expected);
  for (const std::string& line : should)
    if (is.count(line) < should.count(line)) std::fprintf(stderr, "  lacks: %s\n", line.c_str());
  for (const std::string& line : is)
    if (should.count(line) < is.count(line)) std::fprintf(stderr, "  extra: %s\n", line.c_str());
  return false;
}

bool check_has(const std::string& text, const std::string& part) {
  return check_that(text.find(part) != std::string::npos, "\"" + part + "\" is missing in:\n" + text);
}

Pod::Pod(Addresses addresses) : pod_(new_netns()), peer_(new_netns()) {
  Fd home = own_netns();
  enter(peer_.get());
  // iproute2 names the namespace by descriptor path; a child has its own number for it.
  std::string link = "ip link set lo up; ip link add p0 mtu 1450 type veth peer name eth0 address " +
                     std::string(kPodMac) + " mtu 1450 netns /proc/" + std::to_string(::getpid()) + "/fd/" +
                     std::to_string(pod_.get()) + " && ip link set p0 up";
  enter(home.get());
  std::string made = output_of(peer_.get(), link);
  check_equal(made, "", "veth");
  // Duplicate address detection only delays; the peer has none of the addresses.
  std::string up =
      "sysctl -qw net.ipv6.conf.all.accept_dad=0 net.ipv6.conf.default.accept_dad=0 "
      "net.ipv6.conf.eth0.accept_dad=0; ip link set lo up; ip link set eth0 up;";
  if (addresses != Addresses::kNone)
    up += "ip addr add 10.244.2.5/24 brd + dev eth0; ip route add default via 10.244.2.1;";
  if (addresses == Addresses::kDual)
    up +=
        "ip -6 addr add fd00:10:244:2::5/64 dev eth0 nodad; ip -6 route add default via fd00:10:244:2::1;"
        "ip route add 198.51.100.0/24 nexthop via 10.244.2.1 nexthop via 10.244.2.3; ip route add blackhole "
        "192.0.2.0/24;"
        "ip route add 203.0.113.0/24 via 10.244.2.9 table 7;";
  made = output_of(pod_.get(), up + await_link_local("eth0"));
  check_equal(made, "", "addresses");
}

void Pod::add_secondary() {
  std::string made = output_of(
      pod_.get(), "ip link add pod16477688c0e address 02:00:00:aa:bb:cc mtu 1500 type veth peer name p1 netns /proc/" +
                      std::to_string(::getpid()) + "/fd/" + std::to_string(peer_.get()) +
                      " && ip link set pod16477688c0e up");
  check_equal(made, "", "secondary");
  check_equal(output_of(peer_.get(), "ip link set p1 up"), "", "secondary");
  check_equal(output_of(pod_.get(), await_link_local("pod16477688c0e")), "", "secondary");
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
    if (!result && !fault)
      std::fprintf(stderr, "apply: %s (errno %d)\n", result.error().operation.c_str(), result.error().code);
    std::fflush(stdout);
    ::_exit(0);
  }
  int status = 0;
  if (::waitpid(child, &status, 0) != child) broken("waitpid");
  check_that(WIFEXITED(status) && WEXITSTATUS(status) == 0, "apply ended by itself");
  Outcome outcome = *shared;
  ::munmap(memory, sizeof(Outcome));
  return outcome;
}

bool kernel_has_dummy() {
  static const bool has = output_of(new_netns().get(), "ip link add probe type dummy").empty();
  return has;
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
  plan.attachments[0].binding = masquerade;
  return plan;
}

NetworkPlan managed_tap_plan() {
  NetworkPlan plan = bridge_plan();
  plan.attachments[0].binding = BridgePlan{false};
  return plan;
}

NetworkPlan passt_plan() {
  NetworkPlan plan;
  plan.uid = plan.gid = 107;
  plan.passt_gid = 107;
  return plan;
}

NetworkPlan with_secondary(NetworkPlan plan) {
  AttachmentPlan secondary;
  secondary.pod_interface = "pod16477688c0e";
  secondary.index = 1;
  plan.attachments.push_back(secondary);
  return plan;
}

}  // namespace privsep::test
