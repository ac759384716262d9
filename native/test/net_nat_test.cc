// NAT rules in the kernel. The whole table of rules is compared with KubeVirt's by the integration tests.
#include <cerrno>

#include "check.h"
#include "net_fixture.h"

using namespace privsep;
using namespace privsep::test;
using Kind = Pod::Outcome::Kind;

namespace {

constexpr const char* kForeign =
    "nft add table ip filter; nft add chain ip filter mine '{ type filter hook input priority 0; }'; "
    "nft add rule ip filter mine tcp dport 1 counter drop; "
    // A sidecar's iptables-nft uses the same table.
    "nft add table ip nat; nft add chain ip nat PREROUTING '{ type nat hook prerouting priority -100; }'; "
    "nft add rule ip nat PREROUTING tcp dport 15001 counter return; "
    "nft add rule ip nat PREROUTING tcp dport { $(seq -s, 15002 15101) } counter return; "
    "nft add set ip nat theirs '{ type inet_service; flags interval; }'; nft add element ip nat theirs '{ 1-2 }'; "
    // And may use the chains of these names, since nothing says whose they are.
    "nft add chain ip nat prerouting '{ type nat hook prerouting priority -100; }'; "
    "nft add rule ip nat prerouting tcp dport 15001 counter return; "
    "nft add chain ip nat output '{ type nat hook output priority -100; }'; "
    "nft add rule ip nat output ip daddr 127.0.0.1 counter dnat to 10.0.2.3; "
    "nft add chain ip nat postrouting '{ type nat hook postrouting priority 100; }'; "
    "nft add rule ip nat postrouting ip saddr 10.9.0.2 counter masquerade";

}  // namespace

TEST(foreign_rules_stay) {
  Pod pod(Pod::Addresses::kDual);
  check_equal(pod.run(kForeign), "", "foreign rules");
  std::string others =
      "nft -s list table ip filter; nft -s list chain ip nat PREROUTING; nft list set ip nat theirs;"
      "nft -s list table ip nat | grep -e 15001 -e 10.0.2.3 -e 10.9.0.2";
  std::string before = pod.run(others);
  check_that(pod.apply(masquerade_plan()).kind == Kind::kChanged, "masquerade");
  check_equal(pod.run(others), before, "foreign rules");
  check_that(pod.apply(masquerade_plan()).kind == Kind::kUnchanged, "again");
}

TEST(rules_go_with_their_network) {
  NetworkPlan unplug;
  unplug.uid = unplug.gid = 107;
  unplug.detachments.push_back({"eth0", true});
  for (const char* foreign : {"true", kForeign}) {
    Pod pod(Pod::Addresses::kDual);
    check_equal(pod.run(foreign), "", "foreign rules");
    std::string before = pod.run("nft -s list ruleset");
    for (int fault : {EPERM, Pod::kKill}) {
      // Rules first, then bridge and tap.
      for (unsigned n = 1; n <= 3; ++n) {
        check_that(pod.apply(masquerade_plan()).kind == Kind::kChanged, "masquerade");
        pod.apply(unplug, [=](unsigned step, const std::string&) { return step == n ? fault : 0; });
        check_that(pod.apply(unplug).kind == Kind::kChanged, "completed after change " + std::to_string(n));
        check_equal(pod.run("nft -s list ruleset"), before, "rules");
        check_that(pod.apply(unplug).kind == Kind::kUnchanged, "again");
      }
    }
  }
}

TEST(each_rule_is_there_once) {
  Pod pod(Pod::Addresses::kDual);
  check_that(pod.apply(masquerade_plan()).kind == Kind::kChanged, "masquerade");
  std::string rules = pod.run("nft -s list ruleset");
  for (const char* damage :
       {"nft add rule ip nat postrouting ip saddr 10.0.2.2 counter masquerade",
        "nft add rule ip6 nat KUBEVIRT_PREINBOUND counter dnat to fd10:0:2::2", "nft flush chain ip nat output",
        "nft delete table ip6 nat", "nft add chain ip nat prerouting '{ policy drop; }'",
        "nft insert rule ip nat output tcp dport 80 counter dnat to 10.0.2.2",
        "nft insert rule ip nat prerouting iifname eth0 counter jump KUBEVIRT_PREINBOUND",
        "nft add rule ip nat output tcp dport '{ 49152, 49153 }' ip saddr 127.0.0.1 counter return"}) {
    check_equal(pod.run(damage), "", damage);
    check_that(pod.apply(masquerade_plan()).kind == Kind::kChanged, std::string("found: ") + damage);
    check_equal(pod.run("nft -s list ruleset"), rules, std::string("mended: ") + damage);
  }
  CHECK(pod.apply(masquerade_plan()).kind == Kind::kUnchanged);
}

TEST(rules_follow_the_plan) {
  Pod pod(Pod::Addresses::kDual);
  check_that(pod.apply(masquerade_plan()).kind == Kind::kChanged, "masquerade");
  std::string rules = pod.run("nft -s list ruleset");
  NetworkPlan many = masquerade_plan();
  auto& masquerade = std::get<MasqueradePlan>(many.attachments[0].binding);
  masquerade.istio = true;
  masquerade.migration_over_tcp = true;
  for (uint32_t port = 1; port <= 1024; ++port)
    masquerade.ports.push_back({port % 2 ? Protocol::kTcp : Protocol::kSctp, port, port % 3 ? 0 : port + 7});
  check_that(pod.apply(many).kind == Kind::kChanged, "1024 ports");
  check_has(pod.run("nft -s list ruleset"),
            "sctp dport 1024 ip saddr { 127.0.0.1, 127.0.0.6 } counter snat to 10.0.2.1");
  check_that(pod.apply(many).kind == Kind::kUnchanged, "1024 ports, again");
  masquerade.ports[1000].end_port = 60000;
  check_that(pod.apply(many).kind == Kind::kChanged, "one of 1024 ports differs");
  check_that(pod.apply(masquerade_plan()).kind == Kind::kChanged, "no ports");
  check_equal(pod.run("nft -s list ruleset"), rules, "as at first");
}

TEST(a_chain_with_another_hook_is_not_ours) {
  Pod pod(Pod::Addresses::kDual);
  pod.run("nft add table ip nat; nft add chain ip nat output '{ type nat hook output priority 7; }'");
  std::string before = pod.snapshot();
  Pod::Outcome outcome = pod.apply(masquerade_plan(), [](unsigned, const std::string&) { return 0; });
  CHECK(outcome.kind == Kind::kFailed && outcome.unchanged);
  check_equal(pod.snapshot(), before, "undone");
}
