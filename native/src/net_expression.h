// nf_tables expressions of one NAT rule: as the kernel takes them, and as a text by which a rule found in
// the kernel is compared with a wanted one.
#pragma once

#include <map>
#include <string>

#include "net_message.h"
#include "net_nat.h"

namespace privsep {

// An anonymous constant set that a rule looks values up in.
struct NatSet {
  uint32_t key_type = 0;  // nft's data type number: 7 ipv4_addr, 8 ipv6_addr, 13 inet_service
  uint32_t key_size = 0;
  std::vector<std::vector<uint8_t>> elements;
};

// Sets of a rule in order of use.
std::vector<NatSet> rule_sets(const NatRule& rule);

// Writes NFTA_RULE_EXPRESSIONS. The rule's n-th set is looked up under the transaction-wide id
// `first_set` + n.
void put_expressions(MessageBuilder& message, const NatRule& rule, uint32_t first_set);

// The same for equal rules: what each expression does without counter values and set names.
// `sets` gives the text of a set's elements by its name.
bool rule_text(Bytes expressions, const std::map<std::string, std::string>& sets, std::string* out);
// As rule_text of the rule once it is in the kernel.
std::string rule_text(const NatRule& rule);

// Text of a set's elements, whatever their order.
std::string set_text(std::vector<std::vector<uint8_t>> elements);

}  // namespace privsep
