#include "net_link.h"

#include <linux/if_addr.h>
#include <linux/if_link.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <sys/socket.h>

#include <algorithm>

namespace privsep {
namespace {

constexpr uint32_t kDefaultMtu = 1500;

ifinfomsg link_header(uint32_t index) {
  ifinfomsg header{};
  header.ifi_index = static_cast<int>(index);
  return header;
}

// The undo of a change to a link that this call created is its deletion, remembered before.
Transaction::Change unless_created(const LinkRecord& link, Transaction::Change undo) {
  return link.created ? nullptr : undo;
}

void put_address(MessageBuilder& message, const AddressRecord& record) {
  ifaddrmsg header{};
  header.ifa_family = static_cast<uint8_t>(record.address.family());
  header.ifa_prefixlen = record.prefix_length;
  header.ifa_index = record.link;
  message.header(header);
  message.attribute(IFA_LOCAL, record.address.bytes.data(), record.address.size);
  message.attribute(IFA_ADDRESS, record.peer.bytes.data(), record.peer.size);
}

// The last address of the IPv4 network.
IpAddress broadcast_of(const IpAddress& address, uint8_t prefix_length) {
  IpAddress broadcast = address;
  for (int bit = prefix_length; bit < 32; ++bit)
    broadcast.bytes[bit / 8] = static_cast<uint8_t>(broadcast.bytes[bit / 8] | (0x80 >> (bit % 8)));
  return broadcast;
}

bool is_kernel_made(const AddressRecord& address) {
  return address.address.size == 16 && is_link_local(address.address);
}

}  // namespace

Status Links::set(uint32_t index, const std::string& operation, const std::function<void(MessageBuilder&)>& fill) {
  return route_.request(RTM_SETLINK, 0, operation, [&](MessageBuilder& message) {
    message.header(link_header(index));
    fill(message);
  });
}

Status Links::set_flags(uint32_t index, bool up, const std::string& operation) {
  return route_.request(RTM_NEWLINK, 0, operation, [&](MessageBuilder& message) {
    ifinfomsg header = link_header(index);
    header.ifi_flags = up ? IFF_UP : 0;
    header.ifi_change = IFF_UP;
    message.header(header);
  });
}

Status Links::set_name(uint32_t index, const std::string& name, const std::string& operation) {
  return set(index, operation, [&](MessageBuilder& message) { message.text(IFLA_IFNAME, name); });
}

Status Links::set_mac(uint32_t index, const MacAddress& mac, const std::string& operation) {
  return set(index, operation,
             [&](MessageBuilder& message) { message.attribute(IFLA_ADDRESS, mac.data(), mac.size()); });
}

Status Links::set_u32(uint32_t index, uint16_t attribute, uint32_t value, const std::string& operation) {
  return set(index, operation, [&](MessageBuilder& message) { message.u32(attribute, value); });
}

Status Links::set_learning(uint32_t index, bool learning, const std::string& operation) {
  return route_.request(RTM_SETLINK, 0, operation, [&](MessageBuilder& message) {
    ifinfomsg header = link_header(index);
    header.ifi_family = AF_BRIDGE;
    message.header(header);
    size_t nest = message.begin_nest(IFLA_PROTINFO);
    message.u8(IFLA_BRPORT_LEARNING, learning ? 1 : 0);
    message.end_nest(nest);
  });
}

Result<LinkRecord> Links::create(const std::string& name, const std::string& kind, const MacAddress& mac,
                                 uint32_t mtu) {
  std::string operation = "create " + kind + " " + name;
  Status done = changes_.run(
      operation,
      [&] {
        return route_.request(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, operation, [&](MessageBuilder& message) {
          message.header(link_header(0));
          message.text(IFLA_IFNAME, name);
          message.attribute(IFLA_ADDRESS, mac.data(), mac.size());
          if (mtu != kDefaultMtu) message.u32(IFLA_MTU, mtu);
          size_t nest = message.begin_nest(IFLA_LINKINFO);
          message.text(IFLA_INFO_KIND, kind);
          message.end_nest(nest);
        });
      },
      [this, name] { return delete_index(0, name); });
  if (!done) return done.error();
  Result<LinkRecord> link = find(name);
  if (link) link->created = true;
  return link;
}

Result<LinkRecord> Links::find(const std::string& name) {
  std::string operation = "find " + name;
  LinkRecord link;
  Status done = route_.query(
      RTM_GETLINK, operation,
      [&](MessageBuilder& message) {
        message.header(link_header(0));
        message.text(IFLA_IFNAME, name);
      },
      [&](const Message& message) { return parse_link(message.payload, &link) ? 0 : EPROTO; });
  if (!done) return done.error();
  return link;
}

Result<LinkRecord> Links::create_bridge(const std::string& name, const MacAddress& mac) {
  return create(name, "bridge", mac, kDefaultMtu);
}

Result<LinkRecord> Links::create_dummy(const std::string& name, const MacAddress& mac, uint32_t mtu) {
  Result<LinkRecord> dummy = create(name, "dummy", mac, mtu);
  if (dummy || dummy.error().code != EOPNOTSUPP) return dummy;
  return create(name, "bridge", mac, mtu);
}

bool is_dummy(const LinkRecord& link) { return link.kind == "dummy" || link.kind == "bridge"; }

Status Links::delete_index(uint32_t index, const std::string& name) {
  return route_.request(RTM_DELLINK, 0, "delete " + name, [&](MessageBuilder& message) {
    message.header(link_header(index));
    if (index == 0) message.text(IFLA_IFNAME, name);
  });
}

Status Links::remove(const LinkRecord& link) {
  return changes_.run_for_good("delete " + link.name, [&] { return delete_index(link.index, link.name); });
}

Status Links::rename(LinkRecord& link, const std::string& name) {
  std::string operation = "rename " + link.name + " to " + name;
  Status done = changes_.run(
      operation, [&] { return set_name(link.index, name, operation); },
      // Also for a link of our own: its creation is undone by its first name.
      [this, index = link.index, old = link.name, operation] { return set_name(index, old, "undo " + operation); });
  if (done) link.name = name;
  return done;
}

Status Links::ensure_mac(LinkRecord& link, const MacAddress& mac) {
  if (link.mac == mac) return ok();
  std::string operation = "set MAC of " + link.name;
  Transaction::Change undo;
  if (link.mac)
    undo = [this, index = link.index, old = *link.mac, operation] { return set_mac(index, old, "undo " + operation); };
  Status done = changes_.run(
      operation, [&] { return set_mac(link.index, mac, operation); }, unless_created(link, undo));
  if (done) link.mac = mac;
  return done;
}

Status Links::ensure_mtu(LinkRecord& link, uint32_t mtu) {
  if (link.mtu == mtu) return ok();
  std::string operation = "set MTU of " + link.name;
  Status done = changes_.run(
      operation, [&] { return set_u32(link.index, IFLA_MTU, mtu, operation); },
      unless_created(link, [this, index = link.index, old = link.mtu, operation] {
        return set_u32(index, IFLA_MTU, old, "undo " + operation);
      }));
  if (done) link.mtu = mtu;
  return done;
}

Status Links::ensure_controller(LinkRecord& link, uint32_t controller) {
  if (link.controller == controller) return ok();
  std::string operation = "set controller of " + link.name;
  Status done = changes_.run(
      operation, [&] { return set_u32(link.index, IFLA_MASTER, controller, operation); },
      unless_created(link, [this, index = link.index, old = link.controller, operation] {
        return set_u32(index, IFLA_MASTER, old, "undo " + operation);
      }));
  if (!done) return done;
  link.controller = controller;
  link.port_learning = true;
  return done;
}

Status Links::ensure_learning_off(LinkRecord& link) {
  if (link.port_learning == false) return ok();
  std::string operation = "set learning off on " + link.name;
  Status done = changes_.run(
      operation, [&] { return set_learning(link.index, false, operation); },
      unless_created(link,
                     [this, index = link.index, operation] { return set_learning(index, true, "undo " + operation); }));
  if (done) link.port_learning = false;
  return done;
}

Status Links::ensure_up(LinkRecord& link) {
  if (link.up()) return ok();
  std::string operation = "set " + link.name + " up";
  Status done = changes_.run(
      operation, [&] { return set_flags(link.index, true, operation); },
      unless_created(link,
                     [this, index = link.index, operation] { return set_flags(index, false, "undo " + operation); }));
  if (done) link.flags |= IFF_UP;
  return done;
}

Status Links::ensure_down(LinkRecord& link, const Inventory& before) {
  if (!link.up()) return ok();
  std::string operation = "set " + link.name + " down";
  Status done = changes_.run(
      operation, [&] { return set_flags(link.index, false, operation); },
      [this, index = link.index, addresses = link.addresses, routes = before.routes, operation] {
        Status back = set_flags(index, true, "undo " + operation);
        // The kernel lists a link's IPv6 addresses newest first.
        for (auto it = addresses.rbegin(); it != addresses.rend(); ++it)
          if (back && it->address.size == 16) back = restore_address(*it, "undo " + operation);
        if (back) back = restore_routes(routes, index, "undo " + operation);
        return back;
      });
  if (done) link.flags &= ~static_cast<uint32_t>(IFF_UP);
  return done;
}

Status Links::add_address(LinkRecord& link, const IpAddress& address, uint8_t prefix_length) {
  std::string operation = "add " + address.text() + "/" + std::to_string(prefix_length) + " to " + link.name;
  AddressRecord added;
  added.link = link.index;
  added.address = added.peer = address;
  added.prefix_length = prefix_length;
  Status done = changes_.run(
      operation,
      [&] {
        return route_.request(RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL, operation, [&](MessageBuilder& message) {
          put_address(message, added);
          if (address.size != 4 || prefix_length >= 31) return;
          IpAddress broadcast = broadcast_of(address, prefix_length);
          message.attribute(IFA_BROADCAST, broadcast.bytes.data(), broadcast.size);
        });
      },
      unless_created(link, [this, added, operation] {
        return route_.request(RTM_DELADDR, 0, "undo " + operation, [&](MessageBuilder& message) {
          put_address(message, added);
        });
      }));
  if (done) link.addresses.push_back(added);
  return done;
}

Status Links::remove_address(const LinkRecord& link, const AddressRecord& address) {
  std::string operation = "remove " + address.address.text() + " from " + link.name;
  Status done = changes_.run(
      operation,
      [&] {
        return route_.request(RTM_DELADDR, 0, operation, [&](MessageBuilder& message) {
          put_address(message, address);
        });
      },
      [this, address, operation] { return restore_address(address, "undo " + operation); });
  return !done && done.error().code == EADDRNOTAVAIL ? ok() : done;
}

Status Links::ensure_addresses(LinkRecord& link, int family, const std::vector<AddressRecord>& wanted) {
  std::vector<AddressRecord> kept;
  // Backwards: removing the first address of a network would take the later ones of it along.
  for (auto it = link.addresses.rbegin(); it != link.addresses.rend(); ++it) {
    auto same = [&](const AddressRecord& other) { return other.same(*it); };
    bool stays =
        it->address.family() != family || is_kernel_made(*it) || std::any_of(wanted.begin(), wanted.end(), same);
    Status done = stays ? ok() : remove_address(link, *it);
    if (!done) return done;
    if (stays) kept.insert(kept.begin(), *it);
  }
  link.addresses = kept;
  for (const AddressRecord& address : wanted) {
    auto same = [&](const AddressRecord& other) { return other.same(address); };
    if (std::any_of(kept.begin(), kept.end(), same)) continue;
    Status done = add_address(link, address.address, address.prefix_length);
    if (!done) return done;
  }
  return ok();
}

Status Links::restore_address(const AddressRecord& address, const std::string& operation) {
  Status done = route_.request(RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL, operation,
                               [&](MessageBuilder& message) { message.raw(address.raw.data(), address.raw.size()); });
  return !done && done.error().code == EEXIST ? ok() : done;
}

Status Links::restore_routes(const std::vector<RouteRecord>& routes, uint32_t link, const std::string& operation) {
  // A gateway must be reachable through a route on the link before it can be named.
  for (bool with_gateway : {false, true}) {
    for (const RouteRecord& route : routes) {
      bool several_links = route.link == 0;
      if ((route.gateway.size != 0 || several_links) != with_gateway) continue;
      if (route.link != link && !several_links) continue;
      Status done = route_.request(RTM_NEWROUTE, NLM_F_CREATE | NLM_F_EXCL, operation, [&](MessageBuilder& message) {
        rtmsg header;
        std::memcpy(&header, route.raw.data(), sizeof header);
        header.rtm_flags &= RTNH_F_ONLINK;  // the others are states, which a request must not carry
        message.header(header);
        message.raw(route.raw.data() + sizeof header, route.raw.size() - sizeof header);
      });
      if (done || done.error().code == EEXIST) continue;
      // Comes back with the last of its links.
      if (several_links && (done.error().code == ENETDOWN || done.error().code == ENETUNREACH)) continue;
      return done;
    }
  }
  return ok();
}

}  // namespace privsep
