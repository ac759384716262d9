// The table `nat` of one family as the kernel holds it, and which of its rules are ours.
#pragma once

#include <linux/netfilter/nf_tables.h>

#include <map>
#include <string>
#include <vector>

#include "net_nat.h"
#include "net_socket.h"

namespace privsep {

constexpr const char* kNatTable = "nat";
// Of a set that a rule uses and that nobody else names.
constexpr uint32_t kAnonymousSetFlags = NFT_SET_ANONYMOUS | NFT_SET_CONSTANT;

uint16_t nft_type(int message);
void put_nft_header(MessageBuilder& message, int family, uint16_t resource = 0);

struct NatHook {
  uint32_t number;
  int32_t priority;
};

// Null for a regular chain.
const NatHook* hook_of(NatChain chain);

struct FoundRule {
  std::string text;  // see net_expression.h
  uint64_t handle = 0;
};

struct FoundTable {
  std::map<std::string, std::string> chains;  // name -> hook, priority, policy; empty for a regular chain
  std::map<std::string, std::vector<FoundRule>> rules;
  bool named_sets = false;

  bool has(NatChain chain) const { return chains.count(chain_name(chain)) != 0; }
  // With our hook, priority and policy.
  bool is_as_made(NatChain chain) const;
};

// E2BIG beyond 16384 chains, rules or sets, or 64 elements of a set.
Result<FoundTable> read_nat_table(NetlinkSocket& netfilter, int family);

// Tells the rules of masquerade binding, of whatever plan for this guest, from those that others put into
// the base chains. The regular chains are ours as a whole.
class OwnRules {
 public:
  explicit OwnRules(const NatInput& input);
  // Of one chain, in its order.
  std::vector<FoundRule> in(const FoundTable& table, NatChain chain) const;

 private:
  std::map<NatChain, std::vector<std::string>> texts_;
  std::string to_guest_;  // what rules to forwarded ports end in
};

}  // namespace privsep
