#include "net_nft.h"

#include <arpa/inet.h>
#include <linux/netfilter.h>
#include <linux/netfilter/nf_tables.h>
#include <linux/netfilter/nfnetlink.h>
#include <sys/socket.h>

#include <map>

#include "net_expression.h"
#include "net_nft_record.h"

namespace privsep {
namespace {

constexpr const char* kTable = "nat";
constexpr const char* kSetName = "__set%d";
constexpr size_t kMaxRules = 16384;  // of both families; a plan makes at most 6160
constexpr size_t kMaxElements = 64;  // of one set that a rule looks up in
constexpr uint32_t kSetFlags = NFT_SET_ANONYMOUS | NFT_SET_CONSTANT;

uint16_t nft_type(int message) { return static_cast<uint16_t>((NFNL_SUBSYS_NFTABLES << 8) | message); }

void put_header(MessageBuilder& message, int family, uint16_t resource = 0) {
  nfgenmsg header{};
  header.nfgen_family = static_cast<uint8_t>(family);
  header.version = NFNETLINK_V0;
  header.res_id = htons(resource);
  message.header(header);
}

struct Hook {
  uint32_t number;
  int32_t priority;
};

const Hook* hook_of(NatChain chain) {
  static const Hook kHooks[] = {
      {NF_INET_PRE_ROUTING, -100}, {NF_INET_LOCAL_IN, 100}, {NF_INET_LOCAL_OUT, -100}, {NF_INET_POST_ROUTING, 100}};
  size_t index = static_cast<size_t>(chain);
  return index < std::size(kHooks) ? &kHooks[index] : nullptr;
}

// What one family's table `nat` holds now: text of each rule by chain, and which chains there are.
struct Found {
  std::map<std::string, std::string> chains;  // name -> hook, priority, policy; empty for a regular chain
  std::map<std::string, std::vector<std::string>> rules;
};

std::string chain_text(uint32_t hook, int32_t priority, uint32_t policy) {
  return std::to_string(hook) + " " + std::to_string(priority) + " " + std::to_string(policy);
}

int note_chain(const Message& message, Found* found) {
  ChainRecord chain;
  if (!parse_chain(message.payload, &chain)) return EPROTO;
  if (chain.table != kTable) return 0;
  if (found->chains.size() == kMaxRules) return E2BIG;
  found->chains[chain.name] = chain.base ? chain_text(chain.hook, chain.priority, chain.policy) : std::string();
  return 0;
}

int note_rule(const Message& message, std::vector<RuleRecord>* rules) {
  RuleRecord rule;
  if (!parse_rule(message.payload, &rule)) return EPROTO;
  if (rule.table != kTable) return 0;
  if (rules->size() == kMaxRules) return E2BIG;
  rules->push_back(std::move(rule));
  return 0;
}

int note_set(const Message& message, std::vector<std::string>* names) {
  SetRecord set;
  if (!parse_set(message.payload, &set)) return EPROTO;
  if (set.flags != kSetFlags) return 0;
  if (names->size() == kMaxRules) return E2BIG;
  names->push_back(std::move(set.name));
  return 0;
}

// Text of every anonymous set of the table by name.
Status read_sets(NetlinkSocket& netfilter, int family, std::map<std::string, std::string>* out) {
  std::vector<std::string> names;
  Status done = netfilter.dump(
      nft_type(NFT_MSG_GETSET), "list NAT sets",
      [&](MessageBuilder& message) {
        put_header(message, family);
        message.text(NFTA_SET_TABLE, kTable);
      },
      [&](const Message& message) { return note_set(message, &names); });
  for (const std::string& name : names) {
    if (!done) return done;
    std::vector<std::vector<uint8_t>> elements;
    done = netfilter.dump(
        nft_type(NFT_MSG_GETSETELEM), "list NAT set " + name,
        [&](MessageBuilder& message) {
          put_header(message, family);
          message.text(NFTA_SET_ELEM_LIST_TABLE, kTable);
          message.text(NFTA_SET_ELEM_LIST_SET, name);
        },
        [&](const Message& message) { return parse_elements(message.payload, kMaxElements, &elements); });
    if (done) (*out)[name] = set_text(std::move(elements));
  }
  return done;
}

Status read_chains(NetlinkSocket& netfilter, int family, Found* found) {
  return netfilter.dump(
      nft_type(NFT_MSG_GETCHAIN), "list NAT chains", [&](MessageBuilder& message) { put_header(message, family); },
      [&](const Message& message) { return note_chain(message, found); });
}

Status read_table(NetlinkSocket& netfilter, int family, Found* found) {
  Status done = read_chains(netfilter, family, found);
  if (!done || found->chains.empty()) return done;
  std::map<std::string, std::string> sets;
  done = read_sets(netfilter, family, &sets);
  std::vector<RuleRecord> rules;
  if (done)
    done = netfilter.dump(
        nft_type(NFT_MSG_GETRULE), "list NAT rules",
        [&](MessageBuilder& message) {
          put_header(message, family);
          message.text(NFTA_RULE_TABLE, kTable);
        },
        [&](const Message& message) { return note_rule(message, &rules); });
  for (const RuleRecord& rule : rules) {
    std::string text;
    if (!rule_text({rule.expressions.data(), rule.expressions.size()}, sets, &text))
      return Error::of(EPROTO, "list NAT rules");
    found->rules[rule.chain].push_back(text);
  }
  return done;
}

bool is_as_wanted(const NatTable& table, Found& found) {
  std::map<std::string, std::vector<std::string>> wanted;
  for (const NatRule& rule : table.rules) wanted[chain_name(rule.chain)].push_back(rule_text(rule));
  for (NatChain chain : kNatChains) {
    const Hook* hook = hook_of(chain);
    auto there = found.chains.find(chain_name(chain));
    if (there == found.chains.end()) return false;
    if (there->second != (hook ? chain_text(hook->number, hook->priority, NF_ACCEPT) : std::string())) return false;
    if (wanted[chain_name(chain)] != found.rules[chain_name(chain)]) return false;
  }
  return true;
}

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

  Status commit(const std::string& operation) {
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
    put_header(message_, family, resource);
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

// A rule without a handle is every rule of its chain.
void flush_chain(Batch& batch, int family, NatChain chain) {
  batch.add_nft(NFT_MSG_DELRULE, 0, family, [&] {
    batch.message().text(NFTA_RULE_TABLE, kTable);
    batch.message().text(NFTA_RULE_CHAIN, chain_name(chain));
  });
}

void add_chain(Batch& batch, int family, NatChain chain) {
  MessageBuilder& message = batch.message();
  batch.add_nft(NFT_MSG_NEWCHAIN, NLM_F_CREATE, family, [&] {
    message.text(NFTA_CHAIN_TABLE, kTable);
    message.text(NFTA_CHAIN_NAME, chain_name(chain));
    const Hook* hook = hook_of(chain);
    if (hook == nullptr) return;
    message.text(NFTA_CHAIN_TYPE, "nat");
    size_t nest = message.begin_nest(NFTA_CHAIN_HOOK);
    message.be32(NFTA_HOOK_HOOKNUM, hook->number);
    message.be32(NFTA_HOOK_PRIORITY, static_cast<uint32_t>(hook->priority));
    message.end_nest(nest);
    message.be32(NFTA_CHAIN_POLICY, NF_ACCEPT);
  });
  flush_chain(batch, family, chain);
}

void add_set(Batch& batch, int family, const NatSet& set, uint32_t id) {
  MessageBuilder& message = batch.message();
  batch.add_nft(NFT_MSG_NEWSET, NLM_F_CREATE, family, [&] {
    message.text(NFTA_SET_TABLE, kTable);
    message.text(NFTA_SET_NAME, kSetName);
    message.be32(NFTA_SET_FLAGS, kSetFlags);
    message.be32(NFTA_SET_KEY_TYPE, set.key_type);
    message.be32(NFTA_SET_KEY_LEN, set.key_size);
    message.be32(NFTA_SET_ID, id);
    size_t nest = message.begin_nest(NFTA_SET_DESC);
    message.be32(NFTA_SET_DESC_SIZE, static_cast<uint32_t>(set.elements.size()));
    message.end_nest(nest);
  });
  batch.add_nft(NFT_MSG_NEWSETELEM, NLM_F_CREATE, family, [&] {
    message.text(NFTA_SET_ELEM_LIST_TABLE, kTable);
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

void add_rule(Batch& batch, int family, const NatRule& rule, bool last) {
  uint32_t first_set = 0;
  for (const NatSet& set : rule_sets(rule)) {
    uint32_t id = batch.next_set();
    if (first_set == 0) first_set = id;
    add_set(batch, family, set, id);
  }
  MessageBuilder& message = batch.message();
  uint16_t flags = NLM_F_CREATE | NLM_F_APPEND;
  if (last) flags |= NLM_F_ACK;
  batch.add_nft(NFT_MSG_NEWRULE, flags, family, [&] {
    message.text(NFTA_RULE_TABLE, kTable);
    message.text(NFTA_RULE_CHAIN, chain_name(rule.chain));
    put_expressions(message, rule, first_set);
  });
}

}  // namespace

Result<std::vector<NatChainState>> list_nat(NetlinkSocket& netfilter) {
  std::vector<NatChainState> chains;
  for (auto [family, name] : {std::pair(AF_INET, "ip"), std::pair(AF_INET6, "ip6")}) {
    Found found;
    Status done = read_table(netfilter, family, &found);
    if (!done) return done.error();
    for (const auto& [chain, hook] : found.chains)
      chains.push_back({name, chain, hook, static_cast<uint32_t>(found.rules[chain].size())});
  }
  return chains;
}

Status ensure_nat(NetlinkSocket& netfilter, Transaction& changes, const std::vector<NatTable>& tables) {
  bool as_wanted = true;
  for (const NatTable& table : tables) {
    Found found;
    Status done = read_table(netfilter, table.family, &found);
    if (!done) return done;
    as_wanted = as_wanted && is_as_wanted(table, found);
  }
  if (as_wanted) return ok();
  Batch batch(netfilter);
  for (const NatTable& table : tables) {
    batch.add_nft(NFT_MSG_NEWTABLE, NLM_F_CREATE, table.family, [&] {
      batch.message().text(NFTA_TABLE_NAME, kTable);
      batch.message().be32(NFTA_TABLE_FLAGS, 0);
    });
    for (NatChain chain : kNatChains) add_chain(batch, table.family, chain);
    for (const NatRule& rule : table.rules)
      add_rule(batch, table.family, rule, &table == &tables.back() && &rule == &table.rules.back());
  }
  std::string operation = "commit NAT rules";
  return changes.run(operation, [&] { return batch.commit(operation); });
}

Status remove_nat(NetlinkSocket& netfilter, Transaction& changes) {
  Batch batch(netfilter);
  bool found_any = false;
  for (int family : {AF_INET, AF_INET6}) {
    Found found;
    Status done = read_chains(netfilter, family, &found);
    if (!done) return done;
    std::vector<NatChain> ours;
    for (NatChain chain : kNatChains)
      if (found.chains.count(chain_name(chain)) != 0) ours.push_back(chain);
    if (ours.empty()) continue;
    found_any = true;
    if (ours.size() == found.chains.size()) {
      batch.add_nft(NFT_MSG_DELTABLE, NLM_F_ACK, family, [&] { batch.message().text(NFTA_TABLE_NAME, kTable); });
      continue;
    }
    // All rules before the first chain: some jump to the others.
    for (NatChain chain : ours) flush_chain(batch, family, chain);
    for (NatChain chain : ours)
      batch.add_nft(NFT_MSG_DELCHAIN, NLM_F_ACK, family, [&] {
        batch.message().text(NFTA_CHAIN_TABLE, kTable);
        batch.message().text(NFTA_CHAIN_NAME, chain_name(chain));
      });
  }
  if (!found_any) return ok();
  std::string operation = "remove NAT rules";
  return changes.run(operation, [&] { return batch.commit(operation); });
}

}  // namespace privsep
