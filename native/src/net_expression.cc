#include "net_expression.h"

#include <arpa/inet.h>
#include <linux/netfilter/nf_nat.h>
#include <linux/netfilter/nf_tables.h>
#include <sys/socket.h>

#include <algorithm>

namespace privsep {
namespace {

using Kind = NatMatch::Kind;
using Action = NatRule::Action;

constexpr const char* kAnonymousSet = "__set%d";
constexpr uint32_t kTypeIpv4 = 7;
constexpr uint32_t kTypeIpv6 = 8;
constexpr uint32_t kTypeService = 13;
constexpr size_t kMaxName = 256;

std::vector<uint8_t> bytes_of(const IpAddress& address) {
  return {address.bytes.begin(), address.bytes.begin() + address.size};
}

std::vector<uint8_t> bytes_of(uint16_t port) { return {static_cast<uint8_t>(port >> 8), static_cast<uint8_t>(port)}; }

std::vector<std::vector<uint8_t>> values_of(const NatMatch& match) {
  std::vector<std::vector<uint8_t>> values;
  for (const IpAddress& address : match.addresses) values.push_back(bytes_of(address));
  for (uint16_t port : match.ports) values.push_back(bytes_of(port));
  return values;
}

bool needs_set(const NatMatch& match) {
  return match.kind != Kind::kPortRange && match.addresses.size() + match.ports.size() > 1;
}

// One expression: name and whatever `fill` writes as its data.
template <typename Fill>
void put(MessageBuilder& message, const char* name, Fill fill) {
  size_t element = message.begin_nest(NFTA_LIST_ELEM);
  message.text(NFTA_EXPR_NAME, name);
  size_t data = message.begin_nest(NFTA_EXPR_DATA);
  fill();
  message.end_nest(data);
  message.end_nest(element);
}

void put_value(MessageBuilder& message, uint16_t attribute, const std::vector<uint8_t>& value) {
  size_t nest = message.begin_nest(attribute);
  message.attribute(NFTA_DATA_VALUE, value.data(), value.size());
  message.end_nest(nest);
}

void put_compare(MessageBuilder& message, uint32_t how, const std::vector<uint8_t>& value) {
  put(message, "cmp", [&] {
    message.be32(NFTA_CMP_SREG, NFT_REG_1);
    message.be32(NFTA_CMP_OP, how);
    put_value(message, NFTA_CMP_DATA, value);
  });
}

void put_meta(MessageBuilder& message, uint32_t key) {
  put(message, "meta", [&] {
    message.be32(NFTA_META_KEY, key);
    message.be32(NFTA_META_DREG, NFT_REG_1);
  });
}

void put_payload(MessageBuilder& message, uint32_t base, uint32_t offset, uint32_t size) {
  put(message, "payload", [&] {
    message.be32(NFTA_PAYLOAD_DREG, NFT_REG_1);
    message.be32(NFTA_PAYLOAD_BASE, base);
    message.be32(NFTA_PAYLOAD_OFFSET, offset);
    message.be32(NFTA_PAYLOAD_LEN, size);
  });
}

void put_match(MessageBuilder& message, const NatMatch& match, uint32_t set) {
  switch (match.kind) {
    case Kind::kInputLink:
    case Kind::kOutputLink: {
      put_meta(message, match.kind == Kind::kInputLink ? NFT_META_IIFNAME : NFT_META_OIFNAME);
      std::vector<uint8_t> name(kMaxLinkName + 1);
      std::copy(match.link.begin(), match.link.end(), name.begin());
      put_compare(message, NFT_CMP_EQ, name);
      return;
    }
    case Kind::kSource:
    case Kind::kDestination: {
      uint32_t size = match.addresses.front().size;
      uint32_t first = size == 4 ? 12 : 8;  // of the source address in the IP header; the destination follows
      put_payload(message, NFT_PAYLOAD_NETWORK_HEADER, match.kind == Kind::kSource ? first : first + size, size);
      break;
    }
    case Kind::kPorts:
    case Kind::kPortRange:
      put_meta(message, NFT_META_L4PROTO);
      put_compare(message, NFT_CMP_EQ, {static_cast<uint8_t>(match.protocol)});
      put_payload(message, NFT_PAYLOAD_TRANSPORT_HEADER, 2, 2);
      break;
  }
  std::vector<std::vector<uint8_t>> values = values_of(match);
  if (match.kind == Kind::kPortRange) {
    put_compare(message, NFT_CMP_GTE, values[0]);
    put_compare(message, NFT_CMP_LTE, values[1]);
  } else if (needs_set(match)) {
    put(message, "lookup", [&] {
      message.text(NFTA_LOOKUP_SET, kAnonymousSet);
      message.be32(NFTA_LOOKUP_SREG, NFT_REG_1);
      message.be32(NFTA_LOOKUP_SET_ID, set);
    });
  } else {
    put_compare(message, NFT_CMP_EQ, values[0]);
  }
}

void put_verdict(MessageBuilder& message, int verdict, const char* chain) {
  put(message, "immediate", [&] {
    message.be32(NFTA_IMMEDIATE_DREG, NFT_REG_VERDICT);
    size_t data = message.begin_nest(NFTA_IMMEDIATE_DATA);
    size_t nest = message.begin_nest(NFTA_DATA_VERDICT);
    message.be32(NFTA_VERDICT_CODE, static_cast<uint32_t>(verdict));
    if (chain != nullptr) message.text(NFTA_VERDICT_CHAIN, chain);
    message.end_nest(nest);
    message.end_nest(data);
  });
}

void put_nat(MessageBuilder& message, uint32_t type, const IpAddress& target) {
  put(message, "immediate", [&] {
    message.be32(NFTA_IMMEDIATE_DREG, NFT_REG_1);
    put_value(message, NFTA_IMMEDIATE_DATA, bytes_of(target));
  });
  put(message, "nat", [&] {
    message.be32(NFTA_NAT_TYPE, type);
    message.be32(NFTA_NAT_FAMILY, static_cast<uint32_t>(target.family()));
    message.be32(NFTA_NAT_REG_ADDR_MIN, NFT_REG_1);
  });
}

std::string hex(Bytes bytes) {
  static const char kDigits[] = "0123456789abcdef";
  std::string text;
  for (size_t i = 0; i < bytes.size; ++i) {
    text += kDigits[bytes.data[i] >> 4];
    text += kDigits[bytes.data[i] & 15];
  }
  return text;
}

// Attributes of an expression that say what it does. Others are defaults, counts or derived.
const std::vector<uint16_t>* telling_attributes(const std::string& name) {
  static const std::map<std::string, std::vector<uint16_t>> kTable = {
      {"payload", {NFTA_PAYLOAD_DREG, NFTA_PAYLOAD_BASE, NFTA_PAYLOAD_OFFSET, NFTA_PAYLOAD_LEN}},
      {"meta", {NFTA_META_KEY, NFTA_META_DREG}},
      {"cmp", {NFTA_CMP_SREG, NFTA_CMP_OP, NFTA_CMP_DATA}},
      {"lookup", {NFTA_LOOKUP_SET, NFTA_LOOKUP_SREG}},
      {"counter", {}},
      {"immediate", {NFTA_IMMEDIATE_DREG, NFTA_IMMEDIATE_DATA}},
      {"nat", {NFTA_NAT_TYPE, NFTA_NAT_FAMILY, NFTA_NAT_REG_ADDR_MIN, NFTA_NAT_REG_PROTO_MIN}},
      {"masq", {NFTA_MASQ_REG_PROTO_MIN}},
  };
  auto found = kTable.find(name);
  return found == kTable.end() ? nullptr : &found->second;
}

bool expression_text(Bytes row, const std::map<std::string, std::string>& sets, std::string* out) {
  AttributeReader reader(row);
  Attribute attribute;
  std::string name;
  Bytes data;
  while (reader.next(&attribute)) {
    if (attribute.type == NFTA_EXPR_NAME && !attribute.read_text(&name, kMaxName)) return false;
    if (attribute.type == NFTA_EXPR_DATA) data = attribute.value;
  }
  if (reader.malformed()) return false;
  *out += name + "(";
  const std::vector<uint16_t>* telling = telling_attributes(name);
  std::map<uint16_t, std::string> parts;
  AttributeReader fields(data);
  while (fields.next(&attribute)) {
    if (telling != nullptr && std::find(telling->begin(), telling->end(), attribute.type) == telling->end()) continue;
    std::string text;
    if (name == "lookup" && attribute.type == NFTA_LOOKUP_SET) {
      std::string set;
      if (!attribute.read_text(&set, kMaxName)) return false;
      auto found = sets.find(set);
      text = found == sets.end() ? "?" : found->second;
    } else if (attribute.value.size > 4 && (name == "cmp" || name == "immediate")) {
      // The kernel leaves out the nested flag that a request sets; look inside instead.
      AttributeReader inner(attribute.value);
      Attribute value;
      while (inner.next(&value)) text += std::to_string(value.type) + ":" + hex(value.value);
      if (inner.malformed()) return false;
    } else {
      text = hex(attribute.value);
    }
    parts[attribute.type] = text;
  }
  for (const auto& [type, text] : parts) *out += std::to_string(type) + "=" + text + " ";
  *out += ")";
  return !fields.malformed();
}

}  // namespace

std::vector<NatSet> rule_sets(const NatRule& rule) {
  std::vector<NatSet> sets;
  for (const NatMatch& match : rule.matches) {
    if (!needs_set(match)) continue;
    std::vector<std::vector<uint8_t>> values = values_of(match);
    uint32_t size = static_cast<uint32_t>(values.front().size());
    sets.push_back({size == 2 ? kTypeService : size == 4 ? kTypeIpv4 : kTypeIpv6, size, std::move(values)});
  }
  return sets;
}

void put_expressions(MessageBuilder& message, const NatRule& rule, uint32_t first_set) {
  size_t list = message.begin_nest(NFTA_RULE_EXPRESSIONS);
  uint32_t set = first_set;
  for (const NatMatch& match : rule.matches) {
    put_match(message, match, set);
    if (needs_set(match)) ++set;
  }
  put(message, "counter", [] {});
  switch (rule.action) {
    case Action::kJump:
      put_verdict(message, NFT_JUMP, chain_name(rule.jump));
      break;
    case Action::kReturn:
      put_verdict(message, NFT_RETURN, nullptr);
      break;
    case Action::kMasquerade:
      put(message, "masq", [] {});
      break;
    case Action::kDestinationNat:
      put_nat(message, NFT_NAT_DNAT, rule.target);
      break;
    case Action::kSourceNat:
      put_nat(message, NFT_NAT_SNAT, rule.target);
      break;
  }
  message.end_nest(list);
}

bool rule_text(Bytes expressions, const std::map<std::string, std::string>& sets, std::string* out) {
  out->clear();
  AttributeReader reader(expressions);
  Attribute attribute;
  while (reader.next(&attribute))
    if (!expression_text(attribute.value, sets, out)) return false;
  return !reader.malformed();
}

std::string rule_text(const NatRule& rule) {
  // Written and read back, with each lookup standing for its set's elements in turn.
  std::string text;
  MessageBuilder message;
  put_expressions(message, rule, 0);
  std::vector<NatSet> sets = rule_sets(rule);
  std::map<std::string, std::string> placeholder = {{kAnonymousSet, "?"}};
  Bytes list = message.bytes();
  if (message.overflowed() || list.size < NLA_HDRLEN ||
      !rule_text({list.data + NLA_HDRLEN, list.size - NLA_HDRLEN}, placeholder, &text))
    return {};
  size_t at = 0;
  for (const NatSet& set : sets) {
    at = text.find('?', at);
    if (at == std::string::npos) return {};
    std::string elements = set_text(set.elements);
    text.replace(at, 1, elements);
    at += elements.size();
  }
  return text;
}

std::string set_text(std::vector<std::vector<uint8_t>> elements) {
  std::sort(elements.begin(), elements.end());
  std::string text = "{";
  for (const std::vector<uint8_t>& element : elements) text += " " + hex({element.data(), element.size()});
  return text + " }";
}

}  // namespace privsep
