#include "net_fixture.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <new>
#include <set>
#include <sstream>
#include <vector>

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

// Orders to ip(8) as a command of the shell. It stops at the first that fails.
std::string ip_batch(const std::vector<std::string>& orders) {
  std::string lines;
  for (const std::string& order : orders) lines += order + "\n";
  return "ip -batch - <<'END'\n" + lines + "END\n";
}

std::string netns_path(int netns) { return "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(netns); }

// The address comes when the kernel has noticed the carrier, which may take it a second. Looked at without programs:
// many tests wait for it.
bool await_link_local(int netns, const std::string& link) {
  for (int i = 0; i < 200; ++i) {
    Fd home = own_netns();
    enter(netns);
    std::ifstream addresses("/proc/thread-self/net/if_inet6");
    enter(home.get());
    for (std::string line; std::getline(addresses, line);) {
      std::string name = line.substr(line.rfind(' ') + 1);
      if (name == link && line.compare(0, 4, "fe80") == 0) return true;
    }
    ::usleep(20'000);
  }
  return false;
}

// What a namespace has, without what changes by itself. In as few programs as there may be: starting them takes most of
// the time of these tests. The local route of an IPv6 address follows from that, some time after it.
constexpr const char* kSnapshot = R"(
{ printf '%s\n' link addr 'route show table all' | ip -d -o -batch -
  grep -H . /proc/sys/net/ipv4/conf/all/arp_ignore /proc/sys/net/ipv4/ip_forward /proc/sys/net/ipv6/conf/all/forwarding \
    /proc/sys/net/ipv4/ping_group_range /proc/sys/net/ipv4/ip_unprivileged_port_start
} | sed -E '
  /^\/proc/{ s#^/proc/sys/net/([^:]*):#\1 = #; s/\t/ /; b; }
  s/^[0-9]+: //
  / mtu /{
    s/@[^:]*:/:/; s/\\//g
    s/(([a-z_]+_timer) +[0-9.]+|(bridge_id|designated_(root|bridge)) [0-9a-f.:]+|designated_port [0-9]+|port_id [0-9a-fx]+|port_no [0-9a-fx]+)//g
    s/ state (UNKNOWN|UP|DOWN|LOWERLAYERDOWN)//; s/NO-CARRIER,|,LOWER_UP|,M-DOWN//g; s/ promiscuity.*numtxqueues/ numtxqueues/
    s/state (forwarding|disabled) priority/priority/; s/qdisc (noop|noqueue|pfifo_fast|mq)//; s/ link-netnsid [0-9]+//
    s#link/ether (0a:58:0a:f4:02:05|02:00:00:00:00:00|02:00:00:aa:bb:cc) #LINK \1 #; s#link/ether [0-9a-f:]{17}#LINK <random>#
    s/ +/ /g
    b
  }
  / inet6? /{
    s/\\.*//; s/ (tentative|dadfailed)//g; s/ +/ /g
    /inet6 fe80/{ /fe80::858:aff:fef4:205/!d; s/.*(fe80::858:aff:fef4:205.*scope).*/\1/; }
    b
  }
  s/ linkdown//g; s/ expires [0-9]+sec//; /fe80|ff00::|anycast/d; /^local [^ ]*:/d' | sort
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
  // iproute2 names the namespace by descriptor path; a child has its own number for it.
  std::string link = ip_batch({"link set lo up",
                               "link add p0 mtu 1450 type veth peer name eth0 address " + std::string(kPodMac) +
                                   " mtu 1450 netns " + netns_path(pod_.get()),
                               "link set p0 up"});
  std::string made = output_of(peer_.get(), link);
  check_equal(made, "", "veth");
  // Duplicate address detection only delays; the peer has none of the addresses.
  std::string up = "for i in all default eth0; do echo 0 >/proc/sys/net/ipv6/conf/$i/accept_dad; done; ";
  std::vector<std::string> orders{"link set lo up", "link set eth0 up"};
  auto add = [&orders](std::initializer_list<const char*> more) {
    orders.insert(orders.end(), more.begin(), more.end());
  };
  if (addresses != Addresses::kNone)
    add({"addr add 10.244.2.5/24 brd + dev eth0", "route add default via 10.244.2.1"});
  if (addresses == Addresses::kDual)
    add({"addr add fd00:10:244:2::5/64 dev eth0 nodad", "route add default via fd00:10:244:2::1",
         "route add 198.51.100.0/24 nexthop via 10.244.2.1 nexthop via 10.244.2.3", "route add blackhole 192.0.2.0/24",
         "route add 203.0.113.0/24 via 10.244.2.9 table 7"});
  made = output_of(pod_.get(), up + ip_batch(orders));
  check_equal(made, "", "addresses");
  check_that(await_link_local(pod_.get(), "eth0"), "link-local address of eth0");
}

void Pod::add_secondary() {
  std::string made = output_of(
      pod_.get(),
      ip_batch({"link add pod16477688c0e address 02:00:00:aa:bb:cc mtu 1500 type veth peer name p1 netns " +
                    netns_path(peer_.get()),
                "link set pod16477688c0e up"}));
  check_equal(made, "", "secondary");
  check_equal(output_of(peer_.get(), "ip link set p1 up"), "", "secondary");
  check_that(await_link_local(pod_.get(), "pod16477688c0e"), "link-local address of the secondary link");
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
