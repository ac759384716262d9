// End states of apply_network in real namespaces, and what faults at every point leave behind.
#include <cerrno>
#include <cstdio>

#include "net_fixture.h"

namespace privsep::test {
namespace {

using Kind = Pod::Outcome::Kind;

// The captures of KubeVirt's own set-up, in the form of Pod::snapshot.
void expect(const std::string& snapshot, const std::string& line) {
  check(snapshot.find(line) != std::string::npos, "end state lacks: " + line + "\n" + snapshot);
}

Pod::Fault at(unsigned number, int fault) {
  return [=](unsigned step, const std::string&) { return step == number ? fault : 0; };
}

struct Case {
  const char* name;
  Pod::Addresses addresses;
  bool secondary;
  NetworkPlan plan;
};

Pod make_pod(const Case& it) {
  Pod pod(it.addresses);
  if (it.secondary) pod.add_secondary("pod16477688c0e", "02:00:00:aa:bb:cc");
  return pod;
}

NetworkPlan with_secondary(NetworkPlan plan) {
  AttachmentPlan secondary;
  secondary.pod_interface = "pod16477688c0e";
  secondary.index = 1;
  plan.attachments.push_back(secondary);
  return plan;
}

std::vector<Case> cases() {
  std::vector<Case> all = {
      {"masquerade IPv4", Pod::Addresses::kIpv4, false, masquerade_plan()},
      {"masquerade dual stack", Pod::Addresses::kDual, false, masquerade_plan()},
  };
  if (!kernel_has_dummy()) {
    std::printf("SKIPPED: bridge binding, the kernel has no dummy links\n");
    return all;
  }
  all.push_back({"bridge IPv4", Pod::Addresses::kIpv4, false, bridge_plan()});
  all.push_back({"bridge dual stack", Pod::Addresses::kDual, false, bridge_plan()});
  all.push_back({"bridge without addresses", Pod::Addresses::kNone, false, bridge_plan()});
  all.push_back({"masquerade and secondary", Pod::Addresses::kDual, true, with_secondary(masquerade_plan())});
  return all;
}

std::string undisturbed(const Case& it, unsigned* steps) {
  Pod pod = make_pod(it);
  Pod::Outcome first = pod.apply(it.plan);
  check(first.kind == Kind::kChanged, std::string(it.name) + ": first apply changes");
  std::string state = pod.snapshot();
  Pod::Outcome second = pod.apply(it.plan);
  check(second.kind == Kind::kUnchanged && second.steps == 0, std::string(it.name) + ": second apply changes nothing");
  check_equal(pod.snapshot(), state, std::string(it.name) + ": second apply keeps the state");
  *steps = first.steps;
  return state;
}

// The process dies before operation n, for every n; the next call completes the set-up.
void killed_anywhere(const Case& it, const std::string& wanted, unsigned steps) {
  for (unsigned n = 1; n <= steps; ++n) {
    std::string what = std::string(it.name) + ": killed at " + std::to_string(n);
    Pod pod = make_pod(it);
    check(pod.apply(it.plan, at(n, Pod::kKill)).kind == Kind::kKilled, what);
    Pod::Outcome again = pod.apply(it.plan);
    check(again.kind == Kind::kChanged, what + ": completed by the next call");
    check_equal(pod.snapshot(), wanted, what);
  }
}

// Operation n fails once with a passing error: the call itself succeeds.
void busy_anywhere(const Case& it, const std::string& wanted, unsigned steps) {
  for (unsigned n = 1; n <= steps; ++n) {
    std::string what = std::string(it.name) + ": EBUSY at " + std::to_string(n);
    Pod pod = make_pod(it);
    check(pod.apply(it.plan, at(n, EBUSY)).kind == Kind::kChanged, what);
    check_equal(pod.snapshot(), wanted, what);
  }
}

// Operation n fails for good: the namespace is as before.
void refused_anywhere(const Case& it, const std::string& wanted, unsigned steps) {
  for (unsigned n = 1; n <= steps; ++n) {
    std::string what = std::string(it.name) + ": EPERM at " + std::to_string(n);
    Pod pod = make_pod(it);
    std::string before = pod.snapshot();
    Pod::Outcome outcome = pod.apply(it.plan, at(n, EPERM));
    check(outcome.kind == Kind::kFailed && outcome.code == EPERM && outcome.unchanged, what);
    check_equal(pod.snapshot(), before, what + ": undone");
    check(pod.apply(it.plan).kind == Kind::kChanged, what + ": works afterwards");
    check_equal(pod.snapshot(), wanted, what + ": afterwards");
  }
}

// The process dies while it undoes a failure in the last operation.
void killed_while_undoing(const Case& it, const std::string& wanted, unsigned steps) {
  for (unsigned n = 1;; ++n) {
    std::string what = std::string(it.name) + ": killed at undo step " + std::to_string(n);
    Pod pod = make_pod(it);
    Pod::Outcome outcome = pod.apply(it.plan, [&](unsigned step, const std::string&) {
      return step == steps ? EPERM : step == steps + n ? Pod::kKill : 0;
    });
    if (outcome.kind != Kind::kKilled) break;
    check(pod.apply(it.plan).kind == Kind::kChanged, what + ": completed by the next call");
    check_equal(pod.snapshot(), wanted, what);
  }
}

void faults() {
  for (const Case& it : cases()) {
    std::printf("%s\n", it.name);
    unsigned steps = 0;
    std::string wanted = undisturbed(it, &steps);
    killed_anywhere(it, wanted, steps);
    busy_anywhere(it, wanted, steps);
    refused_anywhere(it, wanted, steps);
    killed_while_undoing(it, wanted, steps);
  }
}

// A passing error that does not pass: three attempts, everything undone, and the caller may retry.
void busy_for_good() {
  Pod pod(Pod::Addresses::kIpv4);
  std::string before = pod.snapshot();
  Pod::Outcome outcome = pod.apply(masquerade_plan(), [](unsigned, const std::string& operation) {
    return operation == "create tap tap0" ? EBUSY : 0;
  });
  check(outcome.kind == Kind::kFailed && outcome.code == EBUSY && outcome.unchanged, "EBUSY for good");
  check(outcome.faults == 3, "three attempts");
  check_equal(pod.snapshot(), before, "EBUSY for good: undone");

  outcome = pod.apply(masquerade_plan(), [](unsigned, const std::string& operation) {
    return operation == "create tap tap0" || operation.compare(0, 5, "undo ") == 0 ? EBUSY : 0;
  });
  check(outcome.kind == Kind::kFailed && outcome.code == EBUSY && !outcome.unchanged, "a failed undo is told");
}

void masquerade_end_state() {
  Pod pod(Pod::Addresses::kDual);
  check(pod.apply(masquerade_plan()).kind == Kind::kChanged, "masquerade");
  expect(pod.run("ip -d link show tap0"), "tun type tap pi on vnet_hdr off persist on user 107 group 107");
  expect(pod.run("ip link show tap0"), "<NO-CARRIER,BROADCAST,MULTICAST,UP> mtu 1450 qdisc pfifo_fast master k6t-eth0");
  expect(pod.run("ip link show k6t-eth0"), "UP> mtu 1450");
  expect(pod.run("ip link show k6t-eth0"), "link/ether 02:00:00:00:00:00");
  expect(pod.run("ip addr show k6t-eth0"), "inet 10.0.2.1/24 brd 10.0.2.255 scope global k6t-eth0");
  expect(pod.run("ip addr show k6t-eth0"), "inet6 fd10:0:2::1/120 scope global");
  expect(pod.run("ip route"), "10.0.2.0/24 dev k6t-eth0 proto kernel scope link src 10.0.2.1");
  expect(pod.run("cat /proc/sys/net/ipv4/conf/k6t-eth0/route_localnet"), "1");
  expect(pod.run("cat /proc/sys/net/ipv4/conf/eth0/route_localnet"), "0");
  std::string state = pod.snapshot();
  for (const char* line : {"ipv4/ip_forward = 1", "ipv6/conf/all/forwarding = 1", "ipv4/conf/all/arp_ignore = 0",
                           "eth0 inet 10.244.2.5/24 brd 10.244.2.255 scope global eth0", "default via 10.244.2.1 dev eth0"})
    expect(state, line);
  expect(pod.run("bridge -d link show dev tap0"), "learning on");
}

void bridge_end_state() {
  if (!kernel_has_dummy()) return;
  Pod pod(Pod::Addresses::kIpv4);
  std::string index = pod.run("cat /sys/class/net/eth0/ifindex 2>/dev/null || ip -o link show eth0 | cut -d: -f1");
  check(pod.apply(bridge_plan()).kind == Kind::kChanged, "bridge");
  std::string nic = pod.run("ip -d link show eth0-nic");
  expect(nic, index.substr(0, index.find('\n')) + ": eth0-nic");
  for (const char* part : {"mtu 1450", "master k6t-eth0", "UP,LOWER_UP", "hairpin off", "learning off", "flood on",
                           "neigh_suppress off", "group_fwd_mask 0", "isolated off", "veth"})
    expect(nic, part);
  check(nic.find(kPodMac) == std::string::npos, "the pod link has another MAC");
  check(pod.run("ip -4 addr show eth0-nic").empty(), "the pod link has no IPv4 address");
  check(pod.run("ip addr show eth0-nic").find("fe80::858:aff:fef4:205") == std::string::npos, "nor the old link-local one");
  std::string bridge = pod.run("ip -d link show k6t-eth0");
  for (const char* part : {"mtu 1450", "UP,LOWER_UP", "stp_state 0", "vlan_filtering 0", "mcast_snooping 1", "nf_call_iptables 0"})
    expect(bridge, part);
  check_equal(pod.run("cat /sys/class/net/k6t-eth0/address"), pod.run("cat /sys/class/net/eth0-nic/address"),
              "bridge and pod link have one MAC");
  expect(pod.run("ip addr show k6t-eth0"), "inet 169.254.75.10/32 scope global k6t-eth0");
  std::string tap = pod.run("ip -d link show tap0");
  for (const char* part : {"mtu 1450", "master k6t-eth0", "UP> ", "pi on", "persist on", "user 107 group 107", "learning on"})
    expect(tap, part);
  std::string dummy = pod.run("ip -d link show eth0");
  for (const char* part : {"<BROADCAST,NOARP> mtu 1450 qdisc noop state DOWN", kPodMac, "dummy"}) expect(dummy, part);
  std::string addresses = pod.run("ip addr show eth0");
  expect(addresses, "inet 10.244.2.5/24 brd 10.244.2.255 scope global eth0");
  expect(addresses, "inet6 fe80::858:aff:fef4:205/64 scope link");
  check(pod.run("ip -4 route").empty(), "no IPv4 routes");
  std::string local = pod.run("ip -4 route show table local");
  expect(local, "local 10.244.2.5 dev eth0");
  expect(local, "local 169.254.75.10 dev k6t-eth0");
  std::string state = pod.snapshot();
  for (const char* line : {"ipv4/conf/all/arp_ignore = 1", "ipv4/ip_forward = 0", "ipv6/conf/all/forwarding = 0"}) expect(state, line);
  check(pod.run("nft list ruleset").empty(), "no NAT");
}

void secondary_and_detach() {
  if (!kernel_has_dummy()) return;
  Pod pod(Pod::Addresses::kDual);
  pod.add_secondary("pod16477688c0e", "02:00:00:aa:bb:cc");
  check(pod.apply(with_secondary(masquerade_plan())).kind == Kind::kChanged, "masquerade and secondary");
  std::string nic = pod.run("ip -d link show 16477688c0e-nic");
  for (const char* part : {"mtu 1500", "master k6t-16477688c0e", "learning off"}) expect(nic, part);
  check(pod.run("ip -4 addr show k6t-16477688c0e").empty(), "no address on the bridge of a network without IPAM");
  expect(pod.run("ip -d link show tap16477688c0e"), "user 107 group 107");
  std::string dummy = pod.run("ip -d link show pod16477688c0e");
  for (const char* part : {"<BROADCAST,NOARP> mtu 1500", "02:00:00:aa:bb:cc", "dummy"}) expect(dummy, part);
  expect(pod.run("ip addr show pod16477688c0e"), "fe80::ff:feaa:bbcc/64");
  expect(pod.snapshot(), "ipv4/conf/all/arp_ignore = 0");

  std::string mac = pod.run("cat /sys/class/net/16477688c0e-nic/address");
  NetworkPlan unplug;
  unplug.uid = unplug.gid = 107;
  unplug.detachments.push_back({"pod16477688c0e", false});
  check(pod.apply(unplug).kind == Kind::kChanged, "unplug");
  std::string links = pod.run("ip -o link");
  for (const char* gone : {"k6t-16477688c0e", "tap16477688c0e", "pod16477688c0e"})
    check(links.find(gone) == std::string::npos, std::string("gone after unplug: ") + gone);
  expect(links, "16477688c0e-nic");
  expect(links, "tap0");
  check(pod.run("ip link show 16477688c0e-nic").find("master") == std::string::npos, "no master after unplug");
  expect(pod.run("ip link show 16477688c0e-nic"), "UP,LOWER_UP");
  check_equal(pod.run("cat /sys/class/net/16477688c0e-nic/address"), mac, "MAC kept after unplug");
  check(pod.apply(unplug).kind == Kind::kUnchanged, "second unplug");

  // Plugged again, on the renamed link.
  check(pod.apply(with_secondary(masquerade_plan())).kind == Kind::kChanged, "plug again");
  expect(pod.run("ip link show 16477688c0e-nic"), "master k6t-16477688c0e");
  check(pod.apply(with_secondary(masquerade_plan())).kind == Kind::kUnchanged, "plug again, twice");
}

void taps() {
  Pod pod(Pod::Addresses::kIpv4);
  NetworkPlan plan = masquerade_plan();
  plan.attachments[0].queues = 4;
  plan.uid = plan.gid = 0;
  check(pod.apply(plan).kind == Kind::kChanged, "multi-queue");
  std::string tap = pod.run("ip -d link show tap0");
  for (const char* part : {"pi off", "multi_queue", "user root group root"}) expect(tap, part);
  // Nobody has it open: replaced.
  check(pod.apply(masquerade_plan()).kind == Kind::kChanged, "single queue");
  tap = pod.run("ip -d link show tap0");
  expect(tap, "user 107 group 107");
  check(tap.find("multi_queue") == std::string::npos, "single queue");
}

void nat() {
  Pod pod(Pod::Addresses::kDual);
  std::string foreign = "nft add table ip filter; nft add chain ip filter mine '{ type filter hook input priority 0; }'; "
                        "nft add rule ip filter mine tcp dport 1 counter drop; "
                        // iptables-nft of a sidecar uses the same table name.
                        "nft add table ip nat; nft add chain ip nat PREROUTING '{ type nat hook prerouting priority -100; }'; "
                        "nft add rule ip nat PREROUTING tcp dport 15001 counter return";
  check(pod.run(foreign).empty(), "foreign rules");
  std::string others = "nft -s list table ip filter; nft -s list chain ip nat PREROUTING";
  std::string before = pod.run(others);
  check(pod.apply(masquerade_plan()).kind == Kind::kChanged, "masquerade");
  check_equal(pod.run(others), before, "foreign rules untouched");
  std::string rules = pod.run("nft -s list ruleset");
  // What KubeVirt leaves after a second set-up: every rule twice.
  check(pod.run("nft add rule ip nat postrouting ip saddr 10.0.2.2 counter masquerade; "
                "nft add rule ip6 nat KUBEVIRT_PREINBOUND counter dnat to fd10:0:2::2").empty(), "duplicates");
  check(pod.apply(masquerade_plan()).kind == Kind::kChanged, "duplicates are found");
  check_equal(pod.run("nft -s list ruleset"), rules, "each rule once");
  NetworkPlan many = masquerade_plan();
  many.attachments[0].masquerade->istio = true;
  many.attachments[0].masquerade->migration_over_tcp = true;
  for (uint32_t port = 1; port <= 1024; ++port)
    many.attachments[0].masquerade->ports.push_back({port % 2 ? Protocol::kTcp : Protocol::kUdp, port, port % 3 ? 0 : port + 7});
  check(pod.apply(many).kind == Kind::kChanged, "1024 ports");
  check(pod.apply(many).kind == Kind::kUnchanged, "1024 ports, again");
  check(pod.apply(masquerade_plan()).kind == Kind::kChanged, "no ports");
  check_equal(pod.run("nft -s list ruleset"), rules, "no ports: as at first");
  check(pod.run("nft delete table ip nat; nft add table ip nat; nft add chain ip nat output '{ type nat hook output priority 7; }'").empty(), "other hook");
  Pod::Outcome outcome = pod.apply(masquerade_plan(), at(0, EPERM));
  check(outcome.kind == Kind::kFailed && outcome.unchanged, "a chain of that name with another hook is not ours");
}

void ipv6_disabled_by_default() {
  Pod pod(Pod::Addresses::kDual);
  pod.run("sysctl -qw net.ipv6.conf.default.disable_ipv6=1");
  check(pod.apply(masquerade_plan()).kind == Kind::kChanged, "dual stack where new links have no IPv6");
  expect(pod.run("ip addr show k6t-eth0"), "inet6 fd10:0:2::1/120");
  if (!kernel_has_dummy()) return;
  Pod bridged(Pod::Addresses::kDual);
  bridged.run("sysctl -qw net.ipv6.conf.default.disable_ipv6=1");
  check(bridged.apply(bridge_plan()).kind == Kind::kChanged, "bridge where new links have no IPv6");
  expect(bridged.run("ip addr show eth0"), "inet6 fd00:10:244:2::5/64");
}

void foreign_links() {
  Pod pod(Pod::Addresses::kIpv4);
  check(pod.run("ip link add k6t-eth0 type veth peer name other").empty(), "foreign link");
  std::string before = pod.snapshot();
  Pod::Outcome outcome = pod.apply(masquerade_plan(), at(0, EPERM));
  check(outcome.kind == Kind::kFailed && outcome.code == EEXIST && outcome.unchanged, "type collision");
  check_equal(pod.snapshot(), before, "type collision changes nothing");
  Pod gone(Pod::Addresses::kIpv4);
  gone.run("ip link del eth0");
  outcome = gone.apply(masquerade_plan(), at(0, EPERM));
  check(outcome.kind == Kind::kFailed && outcome.code == ENODEV && outcome.unchanged, "pod link missing");
}

}  // namespace
}  // namespace privsep::test

int main() {
  using namespace privsep::test;
  masquerade_end_state();
  bridge_end_state();
  secondary_and_detach();
  taps();
  nat();
  ipv6_disabled_by_default();
  foreign_links();
  busy_for_good();
  faults();
  std::printf("%d failures\n", failures());
  return failures() == 0 ? 0 : 1;
}
