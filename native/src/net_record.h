// What rtnetlink(7) tells about links, addresses and routes, parsed. Each parser takes one message payload
// and gives false for a malformed one.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "net_message.h"

namespace privsep {

constexpr size_t kMaxLinkName = 15;

using MacAddress = std::array<uint8_t, 6>;

// An IPv4 (4 bytes) or IPv6 (16 bytes) address; size 0: none.
struct IpAddress {
  std::array<uint8_t, 16> bytes{};
  uint8_t size = 0;

  bool operator==(const IpAddress& other) const { return size == other.size && bytes == other.bytes; }
  bool operator!=(const IpAddress& other) const { return !(*this == other); }
  int family() const;
  std::string text() const;  // empty for none
  // Accepts exactly the text forms of inet_pton(3).
  static std::optional<IpAddress> parse(const std::string& text);
  static IpAddress of(int family, const void* bytes);
};

// Neither unspecified, loopback, link-local, multicast nor broadcast; private and ULA count as global.
bool is_global_unicast(const IpAddress& address);
bool is_link_local(const IpAddress& address);

struct AddressRecord {
  uint32_t link = 0;
  IpAddress address;
  IpAddress peer;  // the same, but for the other end of a point-to-point address
  uint8_t prefix_length = 0;
  std::vector<uint8_t> raw;  // the payload, to put the address back exactly as it was

  bool same(const AddressRecord& other) const {
    return address == other.address && prefix_length == other.prefix_length;
  }
};

struct TunRecord {
  std::optional<uint32_t> owner;
  std::optional<uint32_t> group;
  bool multi_queue = false;
  bool persist = false;
};

struct LinkRecord {
  uint32_t index = 0;
  std::string name;
  std::string kind;
  uint8_t operstate = 0;          // IF_OPER_*
  uint32_t flags = 0;             // IFF_*
  std::optional<MacAddress> mac;  // none for links without one, and for all zeros
  uint32_t mtu = 0;
  uint32_t controller = 0;
  std::optional<bool> port_learning;
  bool route_localnet = false;
  TunRecord tun;
  std::vector<AddressRecord> addresses;  // from the address dump
  bool created = false;                  // by the running call: deleting it undoes whatever was done to it

  bool up() const;
  bool carrier() const;
};

struct RouteRecord {
  IpAddress destination;
  uint8_t prefix_length = 0;
  IpAddress gateway;
  uint32_t link = 0;
  uint32_t metric = 0;
  uint32_t table = 0;
  uint8_t type = 0;
  uint8_t protocol = 0;
  uint32_t flags = 0;
  int family = 0;
  std::vector<uint8_t> raw;
};

bool parse_link(Bytes payload, LinkRecord* out);
bool parse_address(Bytes payload, AddressRecord* out);
bool parse_route(Bytes payload, RouteRecord* out);

std::string mac_text(const MacAddress& mac);

}  // namespace privsep
