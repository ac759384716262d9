#include "net_record.h"

#include <arpa/inet.h>
#include <linux/if.h>
#include <linux/if_addr.h>
#include <linux/if_link.h>
#include <linux/if_tun.h>
#include <linux/ip.h>
#include <linux/rtnetlink.h>

#include <cstdio>

namespace privsep {
namespace {

template <typename Header>
bool split(Bytes payload, Header* header, Bytes* attributes) {
  if (payload.size < sizeof *header) return false;
  std::memcpy(header, payload.data, sizeof *header);
  size_t skip = NLMSG_ALIGN(sizeof *header);
  *attributes = payload.size > skip ? Bytes{payload.data + skip, payload.size - skip} : Bytes{};
  return true;
}

bool read_address(const Attribute& attribute, int family, IpAddress* out) {
  size_t size = family == AF_INET ? 4 : 16;
  if (attribute.value.size != size) return false;
  *out = IpAddress::of(family, attribute.value.data);
  return true;
}

bool parse_tun(Bytes row, TunRecord* out) {
  AttributeReader reader(row);
  Attribute attribute;
  bool good = true;
  while (reader.next(&attribute)) {
    uint32_t id = 0;
    uint8_t flag = 0;
    switch (attribute.type) {
      case IFLA_TUN_OWNER:
        good &= attribute.read_u32(&id);
        out->owner = id;
        break;
      case IFLA_TUN_GROUP:
        good &= attribute.read_u32(&id);
        out->group = id;
        break;
      case IFLA_TUN_MULTI_QUEUE:
        good &= attribute.read_u8(&flag);
        out->multi_queue = flag != 0;
        break;
      case IFLA_TUN_PERSIST:
        good &= attribute.read_u8(&flag);
        out->persist = flag != 0;
        break;
      default:
        break;
    }
  }
  return good && !reader.malformed();
}

bool parse_link_info(Bytes row, LinkRecord* out) {
  AttributeReader reader(row);
  Attribute attribute;
  std::string port_kind;
  Bytes data;
  Bytes port;
  while (reader.next(&attribute)) {
    if (attribute.type == IFLA_INFO_KIND && !attribute.read_text(&out->kind, 32)) return false;
    if (attribute.type == IFLA_INFO_SLAVE_KIND && !attribute.read_text(&port_kind, 32)) return false;
    if (attribute.type == IFLA_INFO_DATA) data = attribute.value;
    if (attribute.type == IFLA_INFO_SLAVE_DATA) port = attribute.value;
  }
  if (reader.malformed()) return false;
  if (out->kind == "tun" && !parse_tun(data, &out->tun)) return false;
  if (port_kind != "bridge") return true;
  AttributeReader ports(port);
  while (ports.next(&attribute)) {
    uint8_t learning = 0;
    if (attribute.type != IFLA_BRPORT_LEARNING) continue;
    if (!attribute.read_u8(&learning)) return false;
    out->port_learning = learning != 0;
  }
  return !ports.malformed();
}

// IFLA_AF_SPEC { AF_INET { IFLA_INET_CONF { <devconf number> u32, ... } } }
bool parse_af_spec(Bytes row, LinkRecord* out) {
  AttributeReader families(row);
  Attribute family;
  while (families.next(&family)) {
    if (family.type != AF_INET) continue;
    AttributeReader inner(family.value);
    Attribute conf;
    while (inner.next(&conf)) {
      if (conf.type != IFLA_INET_CONF) continue;
      // An array of u32, number n (from 1) at place n - 1.
      size_t offset = (IPV4_DEVCONF_ROUTE_LOCALNET - 1) * sizeof(uint32_t);
      uint32_t value = 0;
      if (conf.value.size < offset + sizeof value) continue;
      std::memcpy(&value, conf.value.data + offset, sizeof value);
      out->route_localnet = value != 0;
    }
    if (inner.malformed()) return false;
  }
  return !families.malformed();
}

}  // namespace

int IpAddress::family() const { return size == 4 ? AF_INET : AF_INET6; }

std::string IpAddress::text() const {
  char buffer[INET6_ADDRSTRLEN];
  if (size == 0 || inet_ntop(family(), bytes.data(), buffer, sizeof buffer) == nullptr) return {};
  return buffer;
}

IpAddress IpAddress::of(int family, const void* bytes) {
  IpAddress address;
  address.size = family == AF_INET ? 4 : 16;
  std::memcpy(address.bytes.data(), bytes, address.size);
  return address;
}

std::optional<IpAddress> IpAddress::parse(const std::string& text) {
  uint8_t bytes[16];
  if (inet_pton(AF_INET, text.c_str(), bytes) == 1) return of(AF_INET, bytes);
  if (inet_pton(AF_INET6, text.c_str(), bytes) == 1) return of(AF_INET6, bytes);
  return std::nullopt;
}

bool is_link_local(const IpAddress& address) {
  if (address.size == 4) return address.bytes[0] == 169 && address.bytes[1] == 254;
  return address.size == 16 && address.bytes[0] == 0xfe && (address.bytes[1] & 0xc0) == 0x80;
}

bool is_global_unicast(const IpAddress& address) {
  static const IpAddress kAny4 = IpAddress::of(AF_INET, "\0\0\0\0");
  static const IpAddress kBroadcast4 = IpAddress::of(AF_INET, "\xff\xff\xff\xff");
  static const IpAddress kAny6 = IpAddress::of(AF_INET6, &in6addr_any);
  static const IpAddress kLoopback6 = IpAddress::of(AF_INET6, &in6addr_loopback);
  if (address.size == 0 || is_link_local(address)) return false;
  if (address.size == 4) {
    uint8_t first = address.bytes[0];
    return first != 127 && (first & 0xf0) != 0xe0 && address != kAny4 && address != kBroadcast4;
  }
  return address.bytes[0] != 0xff && address != kAny6 && address != kLoopback6;
}

bool LinkRecord::up() const { return (flags & IFF_UP) != 0; }
bool LinkRecord::carrier() const { return (flags & IFF_LOWER_UP) != 0; }

bool parse_link(Bytes payload, LinkRecord* out) {
  ifinfomsg header;
  Bytes row;
  if (!split(payload, &header, &row)) return false;
  *out = LinkRecord{};
  out->index = static_cast<uint32_t>(header.ifi_index);
  out->flags = header.ifi_flags;
  AttributeReader reader(row);
  Attribute attribute;
  bool good = true;
  while (good && reader.next(&attribute)) {
    switch (attribute.type) {
      case IFLA_IFNAME:
        good = attribute.read_text(&out->name, kMaxLinkName);
        break;
      case IFLA_OPERSTATE:
        good = attribute.read_u8(&out->operstate);
        break;
      case IFLA_ADDRESS:
        if (attribute.value.size == 6) {
          MacAddress mac;
          std::memcpy(mac.data(), attribute.value.data, mac.size());
          if (mac != MacAddress{}) out->mac = mac;
        }
        break;
      case IFLA_MTU:
        good = attribute.read_u32(&out->mtu);
        break;
      case IFLA_MASTER:
        good = attribute.read_u32(&out->controller);
        break;
      case IFLA_LINKINFO:
        good = parse_link_info(attribute.value, out);
        break;
      case IFLA_AF_SPEC:
        good = parse_af_spec(attribute.value, out);
        break;
      default:
        break;
    }
  }
  return good && !reader.malformed() && out->index != 0 && !out->name.empty();
}

bool parse_address(Bytes payload, AddressRecord* out) {
  ifaddrmsg header;
  Bytes row;
  if (!split(payload, &header, &row)) return false;
  if (header.ifa_family != AF_INET && header.ifa_family != AF_INET6) return false;
  *out = AddressRecord{};
  out->link = header.ifa_index;
  out->prefix_length = header.ifa_prefixlen;
  AttributeReader reader(row);
  Attribute attribute;
  bool good = true;
  while (good && reader.next(&attribute)) {
    if (attribute.type == IFA_ADDRESS) good = read_address(attribute, header.ifa_family, &out->peer);
    if (attribute.type == IFA_LOCAL) good = read_address(attribute, header.ifa_family, &out->address);
  }
  // IPv6 tells its own address as IFA_ADDRESS alone, unless it has a peer.
  if (out->address.size == 0) out->address = out->peer;
  if (out->peer.size == 0) out->peer = out->address;
  out->raw.assign(payload.data, payload.data + payload.size);
  return good && !reader.malformed() && out->address.size != 0 && out->prefix_length <= out->address.size * 8;
}

bool parse_route(Bytes payload, RouteRecord* out) {
  rtmsg header;
  Bytes row;
  if (!split(payload, &header, &row)) return false;
  if (header.rtm_family != AF_INET && header.rtm_family != AF_INET6) return false;
  *out = RouteRecord{};
  out->family = header.rtm_family;
  out->prefix_length = header.rtm_dst_len;
  out->table = header.rtm_table;
  out->type = header.rtm_type;
  out->protocol = header.rtm_protocol;
  out->flags = header.rtm_flags;
  uint8_t zero[16] = {};
  out->destination = IpAddress::of(out->family, zero);
  AttributeReader reader(row);
  Attribute attribute;
  bool good = true;
  while (good && reader.next(&attribute)) {
    switch (attribute.type) {
      case RTA_DST:
        good = read_address(attribute, out->family, &out->destination);
        break;
      case RTA_GATEWAY:
        good = read_address(attribute, out->family, &out->gateway);
        break;
      case RTA_VIA: {  // a next hop of the other family: u16 family, then the address
        uint16_t family = 0;
        if (attribute.value.size < sizeof family) return false;
        std::memcpy(&family, attribute.value.data, sizeof family);
        Bytes rest{attribute.value.data + sizeof family, attribute.value.size - sizeof family};
        good = (family == AF_INET && rest.size == 4) || (family == AF_INET6 && rest.size == 16);
        if (good) out->gateway = IpAddress::of(family, rest.data);
        break;
      }
      case RTA_OIF:
        good = attribute.read_u32(&out->link);
        break;
      case RTA_PRIORITY:
        good = attribute.read_u32(&out->metric);
        break;
      case RTA_TABLE:
        good = attribute.read_u32(&out->table);
        break;
      default:
        break;
    }
  }
  // IPv6 reports routes that discard as routes over the loopback link.
  if (out->type == RTN_BLACKHOLE || out->type == RTN_UNREACHABLE || out->type == RTN_PROHIBIT || out->type == RTN_THROW)
    out->link = 0;
  out->raw.assign(payload.data, payload.data + payload.size);
  return good && !reader.malformed() && out->prefix_length <= out->destination.size * 8;
}

std::string mac_text(const MacAddress& mac) {
  char text[18];
  std::snprintf(text, sizeof text, "%02x:%02x:%02x:%02x:%02x:%02x", mac[0], mac[1], mac[2], mac[3], mac[4], mac[5]);
  return text;
}

}  // namespace privsep
