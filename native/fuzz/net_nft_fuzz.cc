// The answers from which NAT tables are read, and to the transactions that set them right and take them away.
#include "../src/net_nft.h"

#include <sys/socket.h>

#include "../src/net_plan.h"
#include "fake_kernel.h"

using namespace privsep;

namespace {

// One table with a rule of every kind.
std::vector<NatTable> tables() {
  MasqueradePlan plan;
  plan.ports = {{Protocol::kTcp, 22, 0}, {Protocol::kUdp, 5000, 5010}};
  plan.istio = true;
  plan.migration_over_tcp = true;
  NatInput input{"eth0", "k6t-eth0", *IpAddress::parse("10.0.2.1"), *IpAddress::parse("10.0.2.2"),
                 *IpAddress::parse("10.244.2.5")};
  return {nat_table(plan, input)};
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::vector<NatTable> kTables = tables();
  {
    fuzz::FakeKernel kernel(data, size);
    Result<std::vector<NatChainState>> chains = list_nat(kernel.socket());
    (void)chains;
  }
  StepHook hook;
  Transaction changes(hook);
  {
    fuzz::FakeKernel kernel(data, size);
    Status done = remove_nat(kernel.socket(), changes, {kTables.front().input});
    (void)done;
  }
  fuzz::FakeKernel kernel(data, size);
  Status done = ensure_nat(kernel.socket(), changes, kTables);
  (void)done;
  return 0;
}
