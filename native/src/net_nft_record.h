// What nf_tables tells about chains, rules and sets, parsed. Each parser takes one message payload and gives
// false for a malformed one.
#pragma once

#include <string>
#include <vector>

#include "net_message.h"

namespace privsep {

struct ChainRecord {
  std::string table;
  std::string name;
  bool base = false;  // has a hook
  uint32_t hook = 0;
  int32_t priority = 0;
  uint32_t policy = 0;
};

// A rule with the bytes of its expressions; see net_expression.h.
struct RuleRecord {
  std::string table;
  std::string chain;
  uint64_t handle = 0;  // by which this one rule is deleted
  std::vector<uint8_t> expressions;
};

struct SetRecord {
  std::string name;
  uint32_t flags = 0;
};

bool parse_chain(Bytes payload, ChainRecord* out);
bool parse_rule(Bytes payload, RuleRecord* out);
bool parse_set(Bytes payload, SetRecord* out);

// Adds the keys of a set's elements to *out. 0, or an errno: EPROTO malformed, E2BIG more than `limit`.
int parse_elements(Bytes payload, size_t limit, std::vector<std::vector<uint8_t>>* out);

}  // namespace privsep
