// End states of apply_network in real namespaces, attribute by attribute against what KubeVirt's own set-up
// leaves behind.
#include <sys/utsname.h>

#include <cerrno>
#include <cstdio>
#include <sstream>

#include "check.h"
#include "net_fixture.h"

using namespace privsep;
using namespace privsep::test;
using Kind = Pod::Outcome::Kind;

namespace {

// Fails nothing; given so that a failed apply is expected and not printed.
int nothing(unsigned, const std::string&) { return 0; }

std::string mac_of(const Pod& pod, const std::string& link) {
  return pod.run("ip -o link show " + link + " | grep -o 'link/ether [0-9a-f:]*'");
}

// How ip(8) shows the link that holds the pod link's name: flags and, last, the kind.
const char* dummy_kind() { return kernel_has_dummy() ? " dummy" : " bridge forward_delay"; }

// Before 6.8 a tap just closed may still count as up when it becomes a port.
bool settles_carrier() {
  utsname kernel{};
  int major = 0;
  int minor = 0;
  return ::uname(&kernel) == 0 && std::sscanf(kernel.release, "%d.%d", &major, &minor) == 2 &&
         (major > 6 || (major == 6 && minor >= 8));
}

}  // namespace

TEST(masquerade_end_state) {
  Pod pod(Pod::Addresses::kDual);
  check_that(pod.apply(masquerade_plan()).kind == Kind::kChanged, "masquerade");
  for (const char* link : {"tap0", "k6t-eth0"})
    check_equal(pod.run(std::string("for i in $(seq 200); do ip link show ") + link +
                        " | grep -q NO-CARRIER && exit; sleep 0.02; done; echo carrier"),
                "", "nobody has the tap open");
  check_has(pod.run("ip -d link show tap0"), "tun type tap pi on vnet_hdr off persist on user 107 group 107");
  check_has(pod.run("ip link show tap0"), "<NO-CARRIER,BROADCAST,MULTICAST,UP> mtu 1450");
  check_has(pod.run("ip link show tap0"), "master k6t-eth0 state DOWN");
  check_has(pod.run("ip link show k6t-eth0"), "<NO-CARRIER,BROADCAST,MULTICAST,UP> mtu 1450");
  check_has(pod.run("ip link show k6t-eth0"), "link/ether 02:00:00:00:00:00");
  check_has(pod.run("ip addr show k6t-eth0"), "inet 10.0.2.1/24 brd 10.0.2.255 scope global k6t-eth0");
  check_has(pod.run("ip addr show k6t-eth0"), "inet6 fd10:0:2::1/120 scope global");
  check_has(pod.run("ip route"), "10.0.2.0/24 dev k6t-eth0 proto kernel scope link src 10.0.2.1");
  check_equal(pod.run("cat /proc/sys/net/ipv4/conf/k6t-eth0/route_localnet"), "1\n", "route_localnet of the bridge");
  check_equal(pod.run("cat /proc/sys/net/ipv4/conf/eth0/route_localnet"), "0\n", "route_localnet of the pod link");
  if (settles_carrier())
    check_that(pod.run("ip -6 addr show k6t-eth0").find("fe80") == std::string::npos,
               "no link-local address without carrier");
  std::string state = pod.snapshot();
  for (const char* line :
       {"ipv4/ip_forward = 1", "ipv6/conf/all/forwarding = 1", "ipv4/conf/all/arp_ignore = 0",
        "eth0 inet 10.244.2.5/24 brd 10.244.2.255 scope global eth0", "default via 10.244.2.1 dev eth0"})
    check_has(state, line);
  check_has(pod.run("bridge -d link show dev tap0"), "learning on");
}

TEST(bridge_end_state) {
  Pod pod(Pod::Addresses::kIpv4);
  std::string index = pod.run("ip -o link show eth0 | cut -d: -f1");
  check_that(pod.apply(bridge_plan()).kind == Kind::kChanged, "bridge");
  std::string nic = pod.run("ip -d link show eth0-nic");
  check_has(nic, index.substr(0, index.find('\n')) + ": eth0-nic");
  for (const char* part : {"mtu 1450", "master k6t-eth0", "UP,LOWER_UP", "hairpin off", "learning off", "flood on",
                           "neigh_suppress off", "group_fwd_mask 0", "isolated off", "veth"})
    check_has(nic, part);
  check_that(nic.find(kPodMac) == std::string::npos, "the pod link has another MAC");
  check_that(pod.run("ip -4 addr show eth0-nic").empty(), "the pod link has no IPv4 address");
  check_that(pod.run("ip addr show eth0-nic").find("fe80::858:aff:fef4:205") == std::string::npos,
             "nor the old link-local one");
  std::string bridge = pod.run("ip -d link show k6t-eth0");
  for (const char* part :
       {"mtu 1450", "UP,LOWER_UP", "stp_state 0", "vlan_filtering 0", "mcast_snooping 1", "nf_call_iptables 0"})
    check_has(bridge, part);
  check_equal(mac_of(pod, "k6t-eth0"), mac_of(pod, "eth0-nic"), "bridge and pod link have one MAC");
  check_has(pod.run("ip addr show k6t-eth0"), "inet 169.254.75.10/32 scope global k6t-eth0");
  std::string tap = pod.run("ip -d link show tap0");
  for (const char* part :
       {"mtu 1450", "master k6t-eth0", "UP> ", "pi on", "persist on", "user 107 group 107", "learning on"})
    check_has(tap, part);
  std::string dummy = pod.run("ip -d link show eth0");
  for (const char* part : {"mtu 1450 qdisc noop state DOWN", kPodMac, dummy_kind()}) check_has(dummy, part);
  std::string addresses = pod.run("ip addr show eth0");
  check_has(addresses, "inet 10.244.2.5/24 brd 10.244.2.255 scope global eth0");
  check_has(addresses, "inet6 fe80::858:aff:fef4:205/64 scope link");
  check_that(pod.run("ip -4 route").empty(), "no IPv4 routes");
  std::string local = pod.run("ip -4 route show table local");
  check_has(local, "local 10.244.2.5 dev eth0");
  check_has(local, "local 169.254.75.10 dev k6t-eth0");
  std::string state = pod.snapshot();
  for (const char* line : {"ipv4/conf/all/arp_ignore = 1", "ipv4/ip_forward = 0", "ipv6/conf/all/forwarding = 0"})
    check_has(state, line);
  check_that(pod.run("nft list ruleset").empty(), "no NAT");
}

TEST(bridge_takes_every_address_off_its_port) {
  Pod pod(Pod::Addresses::kIpv4);
  check_equal(pod.run("ip addr add 192.168.9.9 peer 192.168.9.1/32 dev eth0; ip addr add 10.244.2.6/24 dev eth0"), "",
              "more addresses");
  check_that(pod.apply(bridge_plan()).kind == Kind::kChanged, "bridge");
  check_equal(pod.run("ip -o -4 addr show dev eth0-nic; ip route show dev eth0-nic"), "", "port");
}

TEST(managed_tap_end_state) {
  Pod bridge(Pod::Addresses::kIpv4);
  check_that(bridge.apply(bridge_plan()).kind == Kind::kChanged, "bridge");
  Pod pod(Pod::Addresses::kIpv4);
  check_that(pod.apply(managed_tap_plan()).kind == Kind::kChanged, "managed tap");
  check_that(pod.apply(managed_tap_plan()).kind == Kind::kUnchanged, "managed tap, twice");
  std::string state = pod.snapshot();
  check_has(state, "ipv4/conf/all/arp_ignore = 1");
  // All that differs is the address of the bridge.
  std::istringstream with_address(bridge.snapshot());
  std::string wanted;
  for (std::string line; std::getline(with_address, line);)
    if (line.find("169.254.75.10") == std::string::npos) wanted += line + "\n";
  check_equal(state, wanted, "as bridge binding");

  // With another binding's address on it, which goes.
  check_that(bridge.apply(managed_tap_plan()).kind == Kind::kChanged, "managed tap after bridge");
  check_equal(bridge.snapshot(), wanted, "managed tap after bridge");

  NetworkPlan unplug = passt_plan();
  unplug.passt_gid.reset();
  unplug.detachments.push_back({"eth0", true});
  check_that(pod.apply(unplug).kind == Kind::kChanged, "unplug");
  check_equal(pod.run("ip -o link | grep -o 'k6t-eth0\\|tap0\\|: eth0:'"), "", "gone after unplug");
}

TEST(passt_end_state) {
  Pod pod(Pod::Addresses::kDual);
  auto without = [](std::string state, const char* name) {
    size_t at = state.find(name);
    return state.erase(at, state.find('\n', at) - at);
  };
  std::string before = pod.snapshot();
  check_that(pod.apply(passt_plan()).kind == Kind::kChanged, "passt");
  check_that(pod.apply(passt_plan()).kind == Kind::kUnchanged, "passt, twice");
  std::string after = pod.snapshot();
  check_has(after, "ipv4/ping_group_range = 107 107");
  check_has(after, "ipv4/ip_unprivileged_port_start = 0");
  for (const char* name : {"ipv4/ping_group_range", "ipv4/ip_unprivileged_port_start"}) {
    before = without(before, name);
    after = without(after, name);
  }
  check_equal(after, before, "nothing else");
}

TEST(secondary_and_detach) {
  Pod pod(Pod::Addresses::kDual);
  pod.add_secondary();
  check_that(pod.apply(with_secondary(masquerade_plan())).kind == Kind::kChanged, "masquerade and secondary");
  std::string nic = pod.run("ip -d link show 16477688c0e-nic");
  for (const char* part : {"mtu 1500", "master k6t-16477688c0e", "learning off"}) check_has(nic, part);
  check_that(pod.run("ip -4 addr show k6t-16477688c0e").empty(), "no address on the bridge of a network without IPAM");
  check_has(pod.run("ip -d link show tap16477688c0e"), "user 107 group 107");
  std::string dummy = pod.run("ip -d link show pod16477688c0e");
  for (const char* part : {"mtu 1500 qdisc noop state DOWN", "02:00:00:aa:bb:cc", dummy_kind()}) check_has(dummy, part);
  check_has(pod.run("ip addr show pod16477688c0e"), "fe80::ff:feaa:bbcc/64");
  check_has(pod.snapshot(), "ipv4/conf/all/arp_ignore = 0");

  std::string mac = mac_of(pod, "16477688c0e-nic");
  NetworkPlan unplug;
  unplug.uid = unplug.gid = 107;
  unplug.detachments.push_back({"pod16477688c0e", false});
  check_that(pod.apply(unplug).kind == Kind::kChanged, "unplug");
  std::string links = pod.run("ip -o link");
  for (const char* gone : {"k6t-16477688c0e", "tap16477688c0e", "pod16477688c0e"})
    check_that(links.find(gone) == std::string::npos, std::string("gone after unplug: ") + gone);
  check_has(links, "16477688c0e-nic");
  check_has(links, "tap0");
  check_that(pod.run("ip link show 16477688c0e-nic").find("master") == std::string::npos, "no master after unplug");
  check_has(pod.run("ip link show 16477688c0e-nic"), "UP,LOWER_UP");
  check_equal(mac_of(pod, "16477688c0e-nic"), mac, "MAC kept after unplug");
  check_that(pod.apply(unplug).kind == Kind::kUnchanged, "second unplug");

  // Plugged again, on the renamed link.
  check_that(pod.apply(with_secondary(masquerade_plan())).kind == Kind::kChanged, "plug again");
  check_has(pod.run("ip link show 16477688c0e-nic"), "master k6t-16477688c0e");
  check_that(pod.apply(with_secondary(masquerade_plan())).kind == Kind::kUnchanged, "plug again, twice");
}

// CNI does not find the renamed link and leaves it where it is, then makes another.
TEST(plugged_again_beside_the_old_link) {
  Pod pod(Pod::Addresses::kIpv4);
  pod.add_secondary();
  NetworkPlan plug = with_secondary(masquerade_plan());
  NetworkPlan unplug;
  unplug.uid = unplug.gid = 107;
  unplug.detachments.push_back({"pod16477688c0e", false});
  for (int round = 0; round < 2; ++round) {
    check_that(pod.apply(plug).kind == Kind::kChanged, "plug");
    check_that(pod.apply(unplug).kind == Kind::kChanged, "unplug");
    std::string made = pod.run("ip link add pod16477688c0e address 02:00:00:aa:bb:dd type veth peer name q" +
                               std::to_string(round) + " && ip link set pod16477688c0e up");
    check_equal(made, "", "another link");
  }
  std::string before = pod.snapshot();
  Pod::Outcome failed = pod.apply(plug, [](unsigned, const std::string& operation) {
    return operation.find("tap16477688c0e") != std::string::npos ? EPERM : 0;
  });
  check_that(failed.kind == Kind::kFailed && failed.unchanged && failed.faults > 0, "failed and undone");
  check_equal(pod.snapshot(), before, "the old link is back");

  auto index_of = [&](const char* link) { return pod.run(std::string("ip -o link show ") + link + " | cut -d: -f1"); };
  std::string index = index_of("pod16477688c0e");
  check_that(pod.apply(plug).kind == Kind::kChanged, "plug beside the old link");
  check_equal(index_of("16477688c0e-nic"), index, "the port is the link that was made last");
  check_has(pod.run("ip link show 16477688c0e-nic"), "master k6t-16477688c0e");
  check_has(pod.run("ip link show pod16477688c0e"), "02:00:00:aa:bb:dd");
  check_equal(pod.run("ip -o link | grep -c ': k6o'"), "2\n", "old links");
  check_that(pod.apply(plug).kind == Kind::kUnchanged, "twice");
}

TEST(taps) {
  Pod pod(Pod::Addresses::kIpv4);
  NetworkPlan plan = masquerade_plan();
  plan.attachments[0].queues = 4;
  plan.uid = plan.gid = 0;
  check_that(pod.apply(plan).kind == Kind::kChanged, "multi-queue");
  std::string tap = pod.run("ip -d link show tap0");
  for (const char* part : {"pi off", "multi_queue", "user root group root"}) check_has(tap, part);
  // Nobody has it open: replaced.
  check_that(pod.apply(masquerade_plan()).kind == Kind::kChanged, "single queue");
  tap = pod.run("ip -d link show tap0");
  check_has(tap, "user 107 group 107");
  check_that(tap.find("multi_queue") == std::string::npos, "single queue");
}

TEST(ipv6_disabled_by_default) {
  Pod pod(Pod::Addresses::kDual);
  pod.run("sysctl -qw net.ipv6.conf.default.disable_ipv6=1");
  check_that(pod.apply(masquerade_plan()).kind == Kind::kChanged, "dual stack where new links have no IPv6");
  check_has(pod.run("ip addr show k6t-eth0"), "inet6 fd10:0:2::1/120");
  Pod bridged(Pod::Addresses::kDual);
  bridged.run("sysctl -qw net.ipv6.conf.default.disable_ipv6=1");
  check_that(bridged.apply(bridge_plan()).kind == Kind::kChanged, "bridge where new links have no IPv6");
  check_has(bridged.run("ip addr show eth0"), "inet6 fd00:10:244:2::5/64");
}

TEST(foreign_links) {
  Pod pod(Pod::Addresses::kIpv4);
  check_that(pod.run("ip link add k6t-eth0 type veth peer name other").empty(), "foreign link");
  std::string before = pod.snapshot();
  Pod::Outcome outcome = pod.apply(masquerade_plan(), nothing);
  check_that(outcome.kind == Kind::kFailed && outcome.code == EEXIST && outcome.unchanged, "type collision");
  check_equal(pod.snapshot(), before, "type collision changes nothing");
  Pod gone(Pod::Addresses::kIpv4);
  gone.run("ip link del eth0");
  outcome = gone.apply(masquerade_plan(), nothing);
  check_that(outcome.kind == Kind::kFailed && outcome.code == ENODEV && outcome.unchanged, "pod link missing");
}
