// Names, addresses and checks of plans.
#include "../src/net_plan.h"

#include <sys/socket.h>

#include <cerrno>

#include "check.h"
#include "net_fixture.h"

using namespace privsep;
using namespace privsep::test;

namespace {

bool refused(const NetworkPlan& plan) {
  Status status = check_plan(plan);
  return !status && status.error().refused && status.error().code == EINVAL && status.error().unchanged;
}

MasqueradePlan& masquerade_of(NetworkPlan& plan) { return std::get<MasqueradePlan>(plan.attachments[0].binding); }

template <typename Change>
NetworkPlan changed(Change change) {
  NetworkPlan plan = masquerade_plan();
  change(plan);
  return plan;
}

}  // namespace

TEST(names_follow_from_the_pod_interface) {
  struct {
    const char* pod;
    bool primary;
    const char* bridge;
    const char* nic;
    const char* tap;
  } const table[] = {
      {"eth0", true, "k6t-eth0", "eth0-nic", "tap0"},
      {"pod16477688c0e", false, "k6t-16477688c0e", "16477688c0e-nic", "tap16477688c0e"},
      {"net1", false, "k6t-net1", "net1-nic", "tap1"},
      {"custom-iface", true, nullptr, nullptr, nullptr},
      {"ovn-udn1", true, "k6t-ovn-udn1", "ovn-udn1-nic", "tap0"},
  };
  for (const auto& row : table) {
    Result<LinkNames> names = link_names(row.pod, row.primary);
    if (row.bridge == nullptr) {
      CHECK(!names);  // custom-iface-nic has 16 characters
      continue;
    }
    REQUIRE(names);
    check_equal(names->bridge, row.bridge, row.pod);
    check_equal(names->nic, row.nic, row.pod);
    check_equal(names->tap, row.tap, row.pod);
  }
}

TEST(names_are_link_names) {
  for (const char* bad : {"", "lo", ".", "..", "a/b", "a b", "abcdefghijklmnop", "k6t-eth0", "k6d-eth0", "eth0:1",
                          "\xff", "pod", "eth0\n", "abcdefghijkl"}) {
    Result<LinkNames> names = link_names(bad, true);
    CHECK(!names && names.error().refused && names.error().code == EINVAL);
  }
  CHECK(!link_names("net", false));
  CHECK(!link_names("x", false));
}

TEST(guest_addresses_are_the_first_two) {
  struct {
    const char* network;
    uint32_t prefix_length;
    const char* gateway;
    const char* guest;
  } const table[] = {
      {"10.0.2.0", 24, "10.0.2.1", "10.0.2.2"},
      {"10.0.2.77", 24, "10.0.2.1", "10.0.2.2"},
      {"192.168.7.255", 30, "192.168.7.253", "192.168.7.254"},
      {"172.16.0.0", 12, "172.16.0.1", "172.16.0.2"},
      {"10.0.2.0", 31, nullptr, nullptr},
      {"10.0.2.0", 0, nullptr, nullptr},
      {"127.0.0.0", 24, nullptr, nullptr},
      {"224.0.0.0", 24, nullptr, nullptr},
      {"10.0.2", 24, nullptr, nullptr},
      {"", 24, nullptr, nullptr},
  };
  for (const auto& row : table) {
    Result<GuestAddresses> addresses = guest_addresses({row.network, row.prefix_length}, AF_INET);
    CHECK(static_cast<bool>(addresses) == (row.gateway != nullptr));
    if (!addresses || row.gateway == nullptr) continue;
    check_equal(addresses->gateway.text(), row.gateway, row.network);
    check_equal(addresses->guest.text(), row.guest, row.network);
  }
  Result<GuestAddresses> six = guest_addresses({"fd10:0:2::ff", 120}, AF_INET6);
  REQUIRE(six);
  check_equal(six->gateway.text(), "fd10:0:2::1", "IPv6");
  CHECK(!guest_addresses({"fd10:0:2::", 127}, AF_INET6));
  CHECK(!guest_addresses({"fd10:0:2::", 120}, AF_INET));
  CHECK(!guest_addresses({"10.0.2.0", 24}, AF_INET6));
  check_equal(bridge_address(0).text(), "169.254.75.10", "index 0");
  check_equal(bridge_address(10).text(), "169.254.75.110", "index 10");
  check_equal(bridge_address(99).text(), "169.254.75.199", "index 99");
}

TEST(global_unicast) {
  for (const char* yes : {"10.0.0.1", "192.168.0.1", "1.1.1.1", "fd00::1", "2001:db8::1"})
    check_that(is_global_unicast(*IpAddress::parse(yes)), yes);
  for (const char* no : {"0.0.0.0", "127.0.0.1", "169.254.75.10", "224.0.0.1", "239.1.1.1", "255.255.255.255",
                         "::", "::1", "fe80::1", "ff02::1"})
    check_that(!is_global_unicast(*IpAddress::parse(no)), no);
}

TEST(plans_are_checked) {
  CHECK(check_plan(masquerade_plan()));
  CHECK(check_plan(bridge_plan()));
  CHECK(check_plan(with_secondary(masquerade_plan())));
  CHECK(refused(changed([](NetworkPlan& it) { it.gid = 0; })));
  CHECK(refused(changed([](NetworkPlan& it) { it.attachments[0].index = 100; })));
  CHECK(refused(changed([](NetworkPlan& it) { it.attachments[0].queues = 257; })));
  CHECK(refused(changed([](NetworkPlan& it) { it.attachments[0].pod_interface = "lo"; })));
  CHECK(refused(changed([](NetworkPlan& it) { masquerade_of(it).ipv4.prefix_length = 31; })));
  CHECK(refused(changed([](NetworkPlan& it) { masquerade_of(it).ipv6.network = "10.0.0.0"; })));
  CHECK(refused(changed([](NetworkPlan& it) { it.attachments.resize(65, it.attachments[0]); })));
  CHECK(refused(changed([](NetworkPlan& it) { it.detachments.resize(65); })));
  CHECK(refused(changed([](NetworkPlan& it) { it.attachments.push_back(it.attachments[0]); })));
  CHECK(refused(changed([](NetworkPlan& it) { it.detachments.push_back({"eth0", true}); })));
  CHECK(refused(changed([](NetworkPlan& it) { it.detachments.push_back({"net1", true}); })));  // two of tap0
  CHECK(refused(changed([](NetworkPlan& it) {
    it.attachments.push_back(it.attachments[0]);
    it.attachments[1].pod_interface = "net1";
    it.attachments[1].primary = false;
  })));  // two masquerade bindings
  for (ForwardedPort bad : {ForwardedPort{Protocol::kTcp, 0, 0},
                            {Protocol::kTcp, 65536, 0},
                            {Protocol::kTcp, 80, 79},
                            {Protocol::kTcp, 80, 65536},
                            {static_cast<Protocol>(1), 80, 0}})
    CHECK(refused(changed([&](NetworkPlan& it) { masquerade_of(it).ports.push_back(bad); })));
  CHECK(refused(changed([](NetworkPlan& it) {
    masquerade_of(it).ports.resize(1025, {Protocol::kTcp, 80, 0});
  })));
}
