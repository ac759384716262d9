// Looking at a set-up network: what would be changed, which NAT chains there are, and that looking changes nothing.
#include <sys/stat.h>

#include <algorithm>

#include "../src/probe.h"
#include "check.h"
#include "net_fixture.h"

using namespace privsep;
using namespace privsep::test;
using Kind = Pod::Outcome::Kind;

namespace {

std::string pending(const Pod& pod, const NetworkPlan& plan) {
  auto operations = pending_changes(pod.netns(), {}, plan);
  if (!operations) return "failed: " + operations.error().operation;
  std::string text;
  for (const std::string& operation : *operations) text += operation + "\n";
  return text;
}

}  // namespace

TEST(pending_changes_end_at_a_link_to_be_made) {
  Pod pod(Pod::Addresses::kDual);
  std::string before = pod.snapshot();
  check_equal(pending(pod, masquerade_plan()), "create bridge k6t-eth0\n", "a fresh pod");
  check_equal(pod.snapshot(), before, "nothing was changed");
}

TEST(pending_changes_of_a_set_up_pod) {
  for (const NetworkPlan& plan : {masquerade_plan(), bridge_plan(), managed_tap_plan()}) {
    Pod pod(Pod::Addresses::kDual);
    check_that(pod.apply(plan).kind == Kind::kChanged, "set up");
    check_equal(pending(pod, plan), "", "as planned");
    pod.run("ip link set k6t-eth0 down");
    pod.run("ip link set tap0 mtu 1400");
    std::string before = pod.snapshot();
    std::string operations = pending(pod, plan);
    check_has(operations, "set k6t-eth0 up\n");
    check_has(operations, "set MTU of tap0\n");
    check_equal(pod.snapshot(), before, "nothing was changed");
    check_that(pod.apply(plan).kind == Kind::kChanged, "set up again");
    check_equal(pending(pod, plan), "", "as planned again");
  }
}

TEST(pending_changes_of_a_pod_for_passt) {
  Pod pod(Pod::Addresses::kDual);
  std::string both = "write net/ipv4/ping_group_range\nwrite net/ipv4/ip_unprivileged_port_start\n";
  check_equal(pending(pod, passt_plan()), both, "a fresh pod");
  check_that(pod.apply(passt_plan()).kind == Kind::kChanged, "set up");
  check_equal(pending(pod, passt_plan()), "", "as planned");
  pod.run("echo '0 107' >/proc/sys/net/ipv4/ping_group_range");
  check_equal(pending(pod, passt_plan()), "write net/ipv4/ping_group_range\n", "another range");
}

TEST(pending_changes_of_a_plan_that_cannot_be) {
  Pod pod(Pod::Addresses::kDual);
  pod.run("ip link delete eth0");
  check_equal(pending(pod, masquerade_plan()), "failed: pod link (eth0) is missing", "without pod link");
}

TEST(nat_chains_with_their_rules) {
  Pod pod(Pod::Addresses::kDual);
  auto none = observe_nat(pod.netns(), {});
  REQUIRE(none);
  CHECK(none->empty());
  check_that(pod.apply(masquerade_plan()).kind == Kind::kChanged, "set up");
  auto chains = observe_nat(pod.netns(), {});
  REQUIRE(chains);
  CHECK(chains->size() == 12);
  auto found = std::find_if(chains->begin(), chains->end(), [](const NatChainState& chain) {
    return chain.family == "ip6" && chain.name == "prerouting";
  });
  REQUIRE(found != chains->end());
  CHECK(found->hook == "0 -100 1");
  CHECK(found->rules == 1);
}

TEST(looking_refuses_forbidden_namespaces) {
  Pod pod(Pod::Addresses::kNone);
  struct stat st {};
  REQUIRE(::fstat(pod.netns(), &st) == 0);
  std::vector<NamespaceId> forbidden = {{st.st_dev, st.st_ino}};
  CHECK(!observe_nat(pod.netns(), forbidden));
  CHECK(!pending_changes(pod.netns(), forbidden, masquerade_plan()));
}

TEST(kernel_probe_takes_no_effect) {
  auto features = probe_kernel();
  CHECK(features.size() == 13);
  for (const KernelFeature& feature : features) {
    if (feature.name == "openat2" || feature.name == "MOUNT_ATTR_NOSYMFOLLOW" || feature.name == "link type bridge") {
      check_that(feature.error == 0, feature.name);
    }
    if (feature.name == "link type dummy") check_that((feature.error == 0) == kernel_has_dummy(), feature.name);
  }
  Pod pod(Pod::Addresses::kNone);
  check_that(pod.run("ip link show privsep-probe 2>&1").find("does not exist") != std::string::npos, "no link is made");
}
