// Changes to links, each remembered by the transaction with what takes it back. The `ensure` functions
// compare first and do nothing when the link is as wanted already; they keep the record current.
#pragma once

#include "net_observe.h"
#include "net_record.h"
#include "net_socket.h"
#include "net_transaction.h"

namespace privsep {

// A link that holds the pod link's name and addresses: see Links::create_dummy.
bool is_dummy(const LinkRecord& link);

class Links {
 public:
  Links(NetlinkSocket& route, Transaction& changes) : route_(route), changes_(changes) {}

  Result<LinkRecord> create_bridge(const std::string& name, const MacAddress& mac);
  // A kernel without the dummy driver gets a bridge without ports: as long as it is down it is as silent.
  Result<LinkRecord> create_dummy(const std::string& name, const MacAddress& mac, uint32_t mtu);
  // One link, without its addresses. Asking for a single one also makes the kernel settle its carrier
  // (from 6.8 on): a tap just closed counts as up for a moment, and its bridge takes an address for that.
  Result<LinkRecord> find(const std::string& name);
  // Cannot be taken back.
  Status remove(const LinkRecord& link);
  // The message only; for undoing a creation.
  Status delete_index(uint32_t index, const std::string& name);

  Status rename(LinkRecord& link, const std::string& name);
  Status ensure_mac(LinkRecord& link, const MacAddress& mac);
  Status ensure_mtu(LinkRecord& link, uint32_t mtu);
  Status ensure_controller(LinkRecord& link, uint32_t controller);
  Status ensure_learning_off(LinkRecord& link);
  Status ensure_up(LinkRecord& link);
  // Sets the link down. The kernel drops its IPv6 addresses and its routes; undoing brings the link up
  // again and puts back what of `before` (the namespace before any change) is missing.
  Status ensure_down(LinkRecord& link, const Inventory& before);

  // As an administrator would: flags 0, global scope by default, broadcast for IPv4 prefixes below 31.
  Status add_address(LinkRecord& link, const IpAddress& address, uint8_t prefix_length);
  // Absent already is no error.
  Status remove_address(const LinkRecord& link, const AddressRecord& address);
  // Leaves exactly `wanted` of the family; IPv6 link-local addresses are the kernel's and stay.
  Status ensure_addresses(LinkRecord& link, int family, const std::vector<AddressRecord>& wanted);

 private:
  Status set(uint32_t index, const std::string& operation, const std::function<void(MessageBuilder&)>& fill);
  Status set_flags(uint32_t index, bool up, const std::string& operation);
  Status set_name(uint32_t index, const std::string& name, const std::string& operation);
  Status set_mac(uint32_t index, const MacAddress& mac, const std::string& operation);
  Status set_u32(uint32_t index, uint16_t attribute, uint32_t value, const std::string& operation);
  Status set_learning(uint32_t index, bool learning, const std::string& operation);
  Status restore_address(const AddressRecord& address, const std::string& operation);
  Status restore_routes(const std::vector<RouteRecord>& routes, uint32_t link, const std::string& operation);
  Result<LinkRecord> create(const std::string& name, const std::string& kind, const MacAddress& mac, uint32_t mtu);

  NetlinkSocket& route_;
  Transaction& changes_;
};

}  // namespace privsep
