// Messages of rtnetlink: links, addresses, routes; and the texts that become of them.
#include "../src/net_record.h"

#include "target.h"

using namespace privsep;

namespace {

void parse(Bytes payload) {
  LinkRecord link;
  if (parse_link(payload, &link)) {
    PROMISE(!link.name.empty() && link.name.size() <= kMaxLinkName);
    if (link.mac) PROMISE(mac_text(*link.mac).size() == 17);
  }
  AddressRecord address;
  if (parse_address(payload, &address)) {
    PROMISE(IpAddress::parse(address.address.text()) == address.address);
    (void)is_global_unicast(address.address);
  }
  RouteRecord route;
  if (parse_route(payload, &route)) {
    PROMISE(IpAddress::parse(route.destination.text()) == route.destination);
    PROMISE(route.prefix_length <= 128);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  MessageReader reader({data, size});
  Message message;
  size_t seen = 0;
  while (reader.next(&message)) {
    seen += NLMSG_HDRLEN + message.payload.size;
    parse(message.payload);
  }
  PROMISE(seen <= size);
  return 0;
}
