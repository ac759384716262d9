#include "net_nft.h"

#include <linux/netfilter.h>
#include <linux/netfilter/nf_tables.h>
#include <linux/netfilter/nfnetlink.h>
#include <sys/socket.h>

#include "net_expression.h"
#include "net_nft_table.h"

namespace privsep {
namespace {

constexpr const char* kSetName = "__set%d";

// One transaction being written.
class Batch {
 public:
  explicit Batch(NetlinkSocket& netfilter) : netfilter_(netfilter) {
    first_ = add(
        NFNL_MSG_BATCH_BEGIN, NLM_F_REQUEST, AF_UNSPEC, [] {}, NFNL_SUBSYS_NFTABLES);
  }

  template <typename Fill>
  void add_nft(int type, uint16_t flags, int family, Fill fill) {
    last_ = add(nft_type(type), static_cast<uint16_t>(NLM_F_REQUEST | flags), family, fill, 0);
  }

  bool empty() const { return last_ == 0; }

  Status commit(const std::string& operation) {
    message_.add_flags(NLM_F_ACK);
    uint32_t end = add(
        NFNL_MSG_BATCH_END, NLM_F_REQUEST, AF_UNSPEC, [] {}, NFNL_SUBSYS_NFTABLES);
    (void)end;
    return netfilter_.batch(message_, first_, last_, operation);
  }

  MessageBuilder& message() { return message_; }
  uint32_t next_set() { return ++sets_; }

 private:
  template <typename Fill>
  uint32_t add(uint16_t type, uint16_t flags, int family, Fill fill, uint16_t resource) {
    uint32_t sequence = netfilter_.next_sequence();
    message_.begin(type, flags, sequence);
    put_nft_header(message_, family, resource);
    fill();
    message_.end();
    return sequence;
  }

  NetlinkSocket& netfilter_;
  MessageBuilder message_;
  uint32_t first_ = 0;
  uint32_t last_ = 0;
  uint32_t sets_ = 0;
};

void delete_rule(Batch& batch, int family, NatChain chain, const FoundRule& rule) {
  batch.add_nft(NFT_MSG_DELRULE, 0, family, [&] {
    batch.message().text(NFTA_RULE_TABLE, kNatTable);
    batch.message().text(NFTA_RULE_CHAIN, chain_name(chain));
    batch.message().be64(NFTA_RULE_HANDLE, rule.handle);
  });
}

void delete_chain(Batch& batch, int family, NatChain chain) {
  batch.add_nft(NFT_MSG_DELCHAIN, 0, family, [&] {
    batch.message().text(NFTA_CHAIN_TABLE, kNatTable);
    batch.message().text(NFTA_CHAIN_NAME, chain_name(chain));
  });
}

void add_chain(Batch& batch, int family, NatChain chain) {
  MessageBuilder& message = batch.message();
  batch.add_nft(NFT_MSG_NEWCHAIN, NLM_F_CREATE, family, [&] {
    message.text(NFTA_CHAIN_TABLE, kNatTable);
    message.text(NFTA_CHAIN_NAME, chain_name(chain));
    const NatHook* hook = hook_of(chain);
    if (hook == nullptr) return;
    message.text(NFTA_CHAIN_TYPE, "nat");
    size_t nest = message.begin_nest(NFTA_CHAIN_HOOK);
    message.be32(NFTA_HOOK_HOOKNUM, hook->number);
    message.be32(NFTA_HOOK_PRIORITY, static_cast<uint32_t>(hook->priority));
    message.end_nest(nest);
    message.be32(NFTA_CHAIN_POLICY, NF_ACCEPT);
  });
}

void add_set(Batch& batch, int family, const NatSet& set, uint32_t id) {
  MessageBuilder& message = batch.message();
  batch.add_nft(NFT_MSG_NEWSET, NLM_F_CREATE, family, [&] {
    message.text(NFTA_SET_TABLE, kNatTable);
    message.text(NFTA_SET_NAME, kSetName);
    message.be32(NFTA_SET_FLAGS, kAnonymousSetFlags);
    message.be32(NFTA_SET_KEY_TYPE, set.key_type);
    message.be32(NFTA_SET_KEY_LEN, set.key_size);
    message.be32(NFTA_SET_ID, id);
    size_t nest = message.begin_nest(NFTA_SET_DESC);
    message.be32(NFTA_SET_DESC_SIZE, static_cast<uint32_t>(set.elements.size()));
    message.end_nest(nest);
  });
  batch.add_nft(NFT_MSG_NEWSETELEM, NLM_F_CREATE, family, [&] {
    message.text(NFTA_SET_ELEM_LIST_TABLE, kNatTable);
    message.text(NFTA_SET_ELEM_LIST_SET, kSetName);
    message.be32(NFTA_SET_ELEM_LIST_SET_ID, id);
    size_t list = message.begin_nest(NFTA_SET_ELEM_LIST_ELEMENTS);
    for (const std::vector<uint8_t>& value : set.elements) {
      size_t element = message.begin_nest(NFTA_LIST_ELEM);
      size_t key = message.begin_nest(NFTA_SET_ELEM_KEY);
      message.attribute(NFTA_DATA_VALUE, value.data(), value.size());
      message.end_nest(key);
      message.end_nest(element);
    }
    message.end_nest(list);
  });
}

void add_rule(Batch& batch, int family, const NatRule& rule) {
  uint32_t first_set = 0;
  for (const NatSet& set : rule_sets(rule)) {
    uint32_t id = batch.next_set();
    if (first_set == 0) first_set = id;
    add_set(batch, family, set, id);
  }
  MessageBuilder& message = batch.message();
  batch.add_nft(NFT_MSG_NEWRULE, NLM_F_CREATE | NLM_F_APPEND, family, [&] {
    message.text(NFTA_RULE_TABLE, kNatTable);
    message.text(NFTA_RULE_CHAIN, chain_name(rule.chain));
    put_expressions(message, rule, first_set);
  });
}

bool is_as_wanted(const NatTable& wanted, const FoundTable& found) {
  OwnRules own(wanted.input);
  for (NatChain chain : kNatChains) {
    if (!found.is_as_made(chain)) return false;
    std::vector<FoundRule> there = own.in(found, chain);
    auto rule = there.begin();
    for (const NatRule& it : wanted.rules) {
      if (it.chain != chain) continue;
      if (rule == there.end() || rule->text != rule_text(it)) return false;
      ++rule;
    }
    if (rule != there.end()) return false;
  }
  return true;
}

void replace_rules(Batch& batch, const NatTable& wanted, const FoundTable& found) {
  batch.add_nft(NFT_MSG_NEWTABLE, NLM_F_CREATE, wanted.family, [&] {
    batch.message().text(NFTA_TABLE_NAME, kNatTable);
    batch.message().be32(NFTA_TABLE_FLAGS, 0);
  });
  OwnRules own(wanted.input);
  for (NatChain chain : kNatChains) {
    add_chain(batch, wanted.family, chain);
    for (const FoundRule& rule : own.in(found, chain)) delete_rule(batch, wanted.family, chain, rule);
  }
  for (const NatRule& rule : wanted.rules) add_rule(batch, wanted.family, rule);
}

void remove_rules(Batch& batch, int family, const NatInput& input, const FoundTable& found) {
  OwnRules own(input);
  std::vector<NatChain> left;
  for (NatChain chain : kNatChains) {
    if (!found.is_as_made(chain)) continue;
    auto rules = found.rules.find(chain_name(chain));
    size_t all = rules == found.rules.end() ? 0 : rules->second.size();
    if (own.in(found, chain).size() == all) left.push_back(chain);
  }
  if (!left.empty() && left.size() == found.chains.size() && !found.named_sets) {
    batch.add_nft(NFT_MSG_DELTABLE, 0, family, [&] { batch.message().text(NFTA_TABLE_NAME, kNatTable); });
    return;
  }
  // All rules before the first chain: some jump to the others.
  for (NatChain chain : kNatChains)
    for (const FoundRule& rule : own.in(found, chain)) delete_rule(batch, family, chain, rule);
  for (NatChain chain : left) delete_chain(batch, family, chain);
}

}  // namespace

Result<std::vector<NatChainState>> list_nat(NetlinkSocket& netfilter) {
  std::vector<NatChainState> chains;
  for (auto [family, name] : {std::pair(AF_INET, "ip"), std::pair(AF_INET6, "ip6")}) {
    Result<FoundTable> found = read_nat_table(netfilter, family);
    if (!found) return found.error();
    for (const auto& [chain, hook] : found->chains)
      chains.push_back({name, chain, hook, static_cast<uint32_t>(found->rules[chain].size())});
  }
  return chains;
}

Status ensure_nat(NetlinkSocket& netfilter, Transaction& changes, const std::vector<NatTable>& tables) {
  Batch batch(netfilter);
  bool as_wanted = true;
  for (const NatTable& table : tables) {
    Result<FoundTable> found = read_nat_table(netfilter, table.family);
    if (!found) return found.error();
    as_wanted = as_wanted && is_as_wanted(table, *found);
    replace_rules(batch, table, *found);
  }
  if (as_wanted) return ok();
  std::string operation = "commit NAT rules";
  return changes.run_for_good(operation, [&] { return batch.commit(operation); });
}

Status remove_nat(NetlinkSocket& netfilter, Transaction& changes, const std::vector<NatInput>& inputs) {
  Batch batch(netfilter);
  for (const NatInput& input : inputs) {
    int family = input.guest.family();
    Result<FoundTable> found = read_nat_table(netfilter, family);
    if (!found) return found.error();
    remove_rules(batch, family, input, *found);
  }
  if (batch.empty()) return ok();
  std::string operation = "remove NAT rules";
  return changes.run_for_good(operation, [&] { return batch.commit(operation); });
}

}  // namespace privsep
