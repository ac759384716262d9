// Link names and guest networks as the agent states them.
#include "../src/net_plan.h"

#include <sys/socket.h>

#include "target.h"

using namespace privsep;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  std::string text(fuzz::text_of(data + 2, size - 2));
  Result<LinkNames> names = link_names(text, (data[0] & 1) != 0);
  if (names) {
    for (const std::string* name : {&names->pod, &names->bridge, &names->nic, &names->tap, &names->aside})
      PROMISE(!name->empty() && name->size() <= kMaxLinkName && name->find('/') == std::string::npos);
    PROMISE(names->pod != "lo" && names->bridge != names->pod);
  }
  for (int family : {AF_INET, AF_INET6}) {
    Result<GuestAddresses> addresses = guest_addresses({text, data[1]}, family);
    if (!addresses) continue;
    PROMISE(addresses->gateway != addresses->guest && is_global_unicast(addresses->gateway));
    PROMISE(IpAddress::parse(addresses->guest.text()) == addresses->guest);
  }
  return 0;
}
