// KubeVirt's golden cases of link names against ours: what name_cases.mjs prints.
#include "../src/net_plan.h"
#include "check.h"
#include "fixture.h"

using namespace privsep;
using namespace privsep::test;

namespace {

// KubeVirt finds out when the kernel refuses to make the link.
bool fits(const std::string& name) { return name.size() <= 15; }

}  // namespace

TEST(NET_001_links_are_named_as_KubeVirt_names_them) {
  auto cases = golden_cases("PRIVSEP_NAME_CASES");
  CHECK(!cases.empty());
  for (const auto& fields : cases) {
    REQUIRE(fields.size() == 6);
    const std::string& pod = fields[1];
    const std::string& bridge = fields[3];
    const std::string& nic = fields[4];
    const std::string& tap = fields[5];
    auto names = link_names(pod, fields[2] == "primary");
    const bool possible = fits(pod) && fits(bridge) && fits(nic) && fits(tap) && bridge != "k6t-";
    bool right = names ? possible && names->bridge == bridge && names->nic == nic && (tap.empty() || names->tap == tap)
                       : !possible && names.error().refused;
    if (!CHECK(right)) std::fprintf(stderr, "  %s: %s\n", fields[0].c_str(), pod.c_str());
  }
}
