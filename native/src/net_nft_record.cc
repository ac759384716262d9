#include "net_nft_record.h"

#include <linux/netfilter.h>
#include <linux/netfilter/nf_tables.h>
#include <linux/netfilter/nfnetlink.h>

#include <cerrno>

namespace privsep {
namespace {

constexpr size_t kMaxName = 256;

Bytes attributes_of(Bytes payload) {
  size_t skip = NLMSG_ALIGN(sizeof(nfgenmsg));
  return payload.size > skip ? Bytes{payload.data + skip, payload.size - skip} : Bytes{};
}

}  // namespace

bool parse_chain(Bytes payload, ChainRecord* out) {
  *out = ChainRecord{};
  out->policy = NF_ACCEPT;
  uint32_t priority = 0;
  AttributeReader reader(attributes_of(payload));
  Attribute attribute;
  while (reader.next(&attribute)) {
    if (attribute.type == NFTA_CHAIN_TABLE && !attribute.read_text(&out->table, kMaxName)) return false;
    if (attribute.type == NFTA_CHAIN_NAME && !attribute.read_text(&out->name, kMaxName)) return false;
    if (attribute.type == NFTA_CHAIN_POLICY && !attribute.read_be32(&out->policy)) return false;
    if (attribute.type != NFTA_CHAIN_HOOK) continue;
    out->base = true;
    AttributeReader inner(attribute.value);
    Attribute part;
    while (inner.next(&part)) {
      if (part.type == NFTA_HOOK_HOOKNUM && !part.read_be32(&out->hook)) return false;
      if (part.type == NFTA_HOOK_PRIORITY && !part.read_be32(&priority)) return false;
    }
    if (inner.malformed()) return false;
  }
  out->priority = static_cast<int32_t>(priority);
  return !reader.malformed();
}

bool parse_rule(Bytes payload, RuleRecord* out) {
  *out = RuleRecord{};
  AttributeReader reader(attributes_of(payload));
  Attribute attribute;
  while (reader.next(&attribute)) {
    if (attribute.type == NFTA_RULE_TABLE && !attribute.read_text(&out->table, kMaxName)) return false;
    if (attribute.type == NFTA_RULE_CHAIN && !attribute.read_text(&out->chain, kMaxName)) return false;
    if (attribute.type == NFTA_RULE_HANDLE && !attribute.read_be64(&out->handle)) return false;
    if (attribute.type == NFTA_RULE_EXPRESSIONS)
      out->expressions.assign(attribute.value.data, attribute.value.data + attribute.value.size);
  }
  return !reader.malformed();
}

bool parse_set(Bytes payload, SetRecord* out) {
  *out = SetRecord{};
  AttributeReader reader(attributes_of(payload));
  Attribute attribute;
  while (reader.next(&attribute)) {
    if (attribute.type == NFTA_SET_NAME && !attribute.read_text(&out->name, kMaxName)) return false;
    if (attribute.type == NFTA_SET_FLAGS && !attribute.read_be32(&out->flags)) return false;
  }
  return !reader.malformed();
}

// NFTA_SET_ELEM_LIST_ELEMENTS { element { NFTA_SET_ELEM_KEY { NFTA_DATA_VALUE } } ... }
int parse_elements(Bytes payload, size_t limit, std::vector<std::vector<uint8_t>>* out) {
  AttributeReader reader(attributes_of(payload));
  Attribute list;
  while (reader.next(&list)) {
    if (list.type != NFTA_SET_ELEM_LIST_ELEMENTS) continue;
    AttributeReader elements(list.value);
    Attribute element;
    while (elements.next(&element)) {
      AttributeReader parts(element.value);
      Attribute part;
      while (parts.next(&part)) {
        if (part.type != NFTA_SET_ELEM_KEY) continue;
        AttributeReader key(part.value);
        Attribute value;
        while (key.next(&value)) {
          if (out->size() >= limit) return E2BIG;
          out->emplace_back(value.value.data, value.value.data + value.value.size);
        }
        if (key.malformed()) return EPROTO;
      }
      if (parts.malformed()) return EPROTO;
    }
    if (elements.malformed()) return EPROTO;
  }
  return reader.malformed() ? EPROTO : 0;
}

}  // namespace privsep
