// The answers from which the links, addresses and routes of a namespace are read.
#include "../src/net_observe.h"

#include "fake_kernel.h"

using namespace privsep;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::FakeKernel kernel(data, size);
  Result<Inventory> inventory = read_inventory(kernel.socket());
  if (!inventory) return 0;
  PROMISE(inventory->links.size() <= kMaxLinks && inventory->routes.size() <= kMaxRoutes);
  for (const LinkRecord& link : inventory->links) PROMISE(link.addresses.size() <= kMaxAddresses);
  Result<NetworkState> state = describe(*inventory);
  PROMISE(!state || state->links.size() == inventory->links.size());
  return 0;
}
