#include "net_observe.h"

#include <linux/if.h>
#include <linux/rtnetlink.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdio>

#include "net_namespace.h"
#include "net_nft.h"
#include "net_sysctl.h"

namespace privsep {
namespace {

constexpr int kReadings = 3;

// A kernel without IPv6 answers for all families when it is asked for that one. Each header begins with the family.
bool is_of(const Message& message, uint8_t family) { return message.payload.size != 0 && message.payload.data[0] == family; }

template <typename Header>
std::function<void(MessageBuilder&)> with(const Header& header) {
  return [header](MessageBuilder& message) { message.header(header); };
}

Status read_links(NetlinkSocket& route, Inventory* out) {
  return route.dump(RTM_GETLINK, "list links", with(ifinfomsg{}), [out](const Message& message) {
    LinkRecord link;
    if (!parse_link(message.payload, &link)) return EPROTO;
    if (out->links.size() == kMaxLinks) return E2BIG;
    out->links.push_back(std::move(link));
    return 0;
  });
}

Status read_addresses(NetlinkSocket& route, uint8_t family, Inventory* out) {
  ifaddrmsg header{};
  header.ifa_family = family;
  return route.dump(RTM_GETADDR, "list addresses", with(header), [out, family](const Message& message) {
    if (!is_of(message, family)) return 0;
    AddressRecord address;
    if (!parse_address(message.payload, &address)) return EPROTO;
    auto link = std::find_if(out->links.begin(), out->links.end(),
                             [&](const LinkRecord& it) { return it.index == address.link; });
    if (link == out->links.end()) return 0;  // its link came after the list of links
    if (link->addresses.size() == kMaxAddresses) return E2BIG;
    link->addresses.push_back(std::move(address));
    return 0;
  });
}

Status read_routes(NetlinkSocket& route, uint8_t family, Inventory* out) {
  rtmsg header{};
  header.rtm_family = family;
  return route.dump(RTM_GETROUTE, "list routes", with(header), [out, family](const Message& message) {
    if (!is_of(message, family)) return 0;
    RouteRecord record;
    if (!parse_route(message.payload, &record)) return EPROTO;
    if ((record.flags & RTM_F_CLONED) != 0 || record.table == RT_TABLE_LOCAL) return 0;
    if (out->routes.size() == kMaxRoutes) return E2BIG;
    out->routes.push_back(std::move(record));
    return 0;
  });
}

Status read_all(NetlinkSocket& route, Inventory* out) {
  *out = Inventory{};
  Status done = read_links(route, out);
  for (uint8_t family : {AF_INET, AF_INET6})
    if (done) done = read_addresses(route, family, out);
  for (uint8_t family : {AF_INET, AF_INET6})
    if (done) done = read_routes(route, family, out);
  return done;
}

const char* operstate_name(uint8_t operstate) {
  static const char* const kNames[] = {"unknown", "notpresent", "down", "lowerlayerdown", "testing", "dormant", "up"};
  return operstate < std::size(kNames) ? kNames[operstate] : "unknown";
}

LinkState describe_link(const LinkRecord& link) {
  LinkState state;
  state.index = link.index;
  state.name = link.name;
  state.kind = link.kind;
  state.operstate = operstate_name(link.operstate);
  state.up = link.up();
  if (link.mac) state.mac = mac_text(*link.mac);
  state.mtu = link.mtu;
  state.controller = link.controller;
  for (const AddressRecord& address : link.addresses)
    state.addresses.push_back({address.address.text(), address.prefix_length});
  state.port_learning = link.port_learning;
  state.route_localnet = link.route_localnet;
  return state;
}

// A missing file means that the kernel was built, or started, without IPv6.
Result<std::string> read_optional(Sysctl key) {
  Result<std::string> text = read_sysctl(key);
  if (!text && text.error().code == ENOENT) return std::string("0");
  return text;
}

Status read_number(Sysctl key, uint32_t* out) {
  Result<std::string> text = read_optional(key);
  if (!text) return text.error();
  return std::sscanf(text->c_str(), "%u", out) == 1 ? ok() : Status(Error::of(EPROTO, sysctl_name(key, {})));
}

Status read_sysctls(NetworkSysctls* out) {
  uint32_t ipv4 = 0;
  uint32_t ipv6 = 0;
  Status done = read_number(Sysctl::kIpv4ArpIgnore, &out->ipv4_arp_ignore);
  if (done) done = read_number(Sysctl::kIpv4Forwarding, &ipv4);
  if (done) done = read_number(Sysctl::kIpv6Forwarding, &ipv6);
  if (done) done = read_number(Sysctl::kIpv4UnprivilegedPortStart, &out->ipv4_unprivileged_port_start);
  if (!done) return done;
  out->ipv4_forwarding = ipv4 != 0;
  out->ipv6_forwarding = ipv6 != 0;
  Result<std::string> range = read_sysctl(Sysctl::kIpv4PingGroupRange);
  if (!range) return range.error();
  if (std::sscanf(range->c_str(), "%u %u", &out->ipv4_ping_group_start, &out->ipv4_ping_group_end) != 2)
    return Error::of(EPROTO, sysctl_name(Sysctl::kIpv4PingGroupRange, {}));
  return ok();
}

}  // namespace

LinkRecord* Inventory::find(const std::string& name) {
  auto link = std::find_if(links.begin(), links.end(), [&](const LinkRecord& it) { return it.name == name; });
  return link == links.end() ? nullptr : &*link;
}

Result<Inventory> read_inventory(NetlinkSocket& route) {
  Inventory inventory;
  Status done = read_all(route, &inventory);
  for (int i = 1; i < kReadings && !done && done.error().code == EAGAIN; ++i) done = read_all(route, &inventory);
  if (!done) return done.error();
  return inventory;
}

Result<NetworkState> describe(const Inventory& inventory) {
  NetworkState state;
  for (const LinkRecord& link : inventory.links) state.links.push_back(describe_link(link));
  for (const RouteRecord& route : inventory.routes) {
    if (route.table != RT_TABLE_MAIN) continue;
    state.routes.push_back({route.destination.text() + "/" + std::to_string(route.prefix_length), route.gateway.text(),
                            route.link, route.metric});
  }
  Status done = read_sysctls(&state.sysctls);
  if (!done) return done.error();
  return state;
}

Result<NetworkState> observe_network(int netns_fd, const std::vector<NamespaceId>& forbidden,
                                     std::optional<Deadline> deadline) {
  return in_namespace<NetworkState>(netns_fd, forbidden, [deadline]() -> Result<NetworkState> {
    Result<NetlinkSocket> route = NetlinkSocket::open(NETLINK_ROUTE, deadline);
    if (!route) return route.error();
    Result<Inventory> inventory = read_inventory(*route);
    if (!inventory) return inventory.error();
    return describe(*inventory);
  });
}

Result<std::vector<NatChainState>> observe_nat(int netns_fd, const std::vector<NamespaceId>& forbidden,
                                               std::optional<Deadline> deadline) {
  using Chains = std::vector<NatChainState>;
  return in_namespace<Chains>(netns_fd, forbidden, [deadline]() -> Result<Chains> {
    Result<NetlinkSocket> netfilter = NetlinkSocket::open(NETLINK_NETFILTER, deadline);
    if (!netfilter) return netfilter.error();
    return list_nat(*netfilter);
  });
}

}  // namespace privsep
