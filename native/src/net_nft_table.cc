#include "net_nft_table.h"

#include <arpa/inet.h>
#include <linux/netfilter.h>
#include <linux/netfilter/nfnetlink.h>

#include <algorithm>

#include "net_expression.h"
#include "net_nft_record.h"

namespace privsep {
namespace {

constexpr size_t kMaxRules = 16384;  // of both families; a plan makes at most 6160
constexpr size_t kMaxElements = 64;  // of one set that a rule looks up in

std::string chain_text(uint32_t hook, int32_t priority, uint32_t policy) {
  return std::to_string(hook) + " " + std::to_string(priority) + " " + std::to_string(policy);
}

int note_chain(const Message& message, FoundTable* found) {
  ChainRecord chain;
  if (!parse_chain(message.payload, &chain)) return EPROTO;
  if (chain.table != kNatTable) return 0;
  if (found->chains.size() == kMaxRules) return E2BIG;
  found->chains[chain.name] = chain.base ? chain_text(chain.hook, chain.priority, chain.policy) : std::string();
  return 0;
}

int note_rule(const Message& message, std::vector<RuleRecord>* rules) {
  RuleRecord rule;
  if (!parse_rule(message.payload, &rule)) return EPROTO;
  if (rule.table != kNatTable) return 0;
  if (rules->size() == kMaxRules) return E2BIG;
  rules->push_back(std::move(rule));
  return 0;
}

int note_set(const Message& message, std::vector<std::string>* names, bool* named) {
  SetRecord set;
  if (!parse_set(message.payload, &set)) return EPROTO;
  if (set.flags != kAnonymousSetFlags) {
    *named = *named || (set.flags & NFT_SET_ANONYMOUS) == 0;
    return 0;
  }
  if (names->size() == kMaxRules) return E2BIG;
  names->push_back(std::move(set.name));
  return 0;
}

// Text of every anonymous set of the table by name.
Status read_sets(NetlinkSocket& netfilter, int family, std::map<std::string, std::string>* out, bool* named) {
  std::vector<std::string> names;
  Status done = netfilter.dump(
      nft_type(NFT_MSG_GETSET), "list NAT sets",
      [&](MessageBuilder& message) {
        put_nft_header(message, family);
        message.text(NFTA_SET_TABLE, kNatTable);
      },
      [&](const Message& message) { return note_set(message, &names, named); });
  for (const std::string& name : names) {
    if (!done) return done;
    std::vector<std::vector<uint8_t>> elements;
    bool whole = true;
    done = netfilter.dump(
        nft_type(NFT_MSG_GETSETELEM), "list NAT set " + name,
        [&](MessageBuilder& message) {
          put_nft_header(message, family);
          message.text(NFTA_SET_ELEM_LIST_TABLE, kNatTable);
          message.text(NFTA_SET_ELEM_LIST_SET, name);
        },
        [&](const Message& message) {
          int code = parse_elements(message.payload, kMaxElements, &elements);
          // More than any rule of ours looks up in: a stranger's.
          whole = whole && code != E2BIG;
          return code == E2BIG ? 0 : code;
        });
    if (done && whole) (*out)[name] = set_text(std::move(elements));
  }
  return done;
}

Status read_chains(NetlinkSocket& netfilter, int family, FoundTable* found) {
  return netfilter.dump(
      nft_type(NFT_MSG_GETCHAIN), "list NAT chains", [&](MessageBuilder& message) { put_nft_header(message, family); },
      [&](const Message& message) { return note_chain(message, found); });
}

}  // namespace

uint16_t nft_type(int message) { return static_cast<uint16_t>((NFNL_SUBSYS_NFTABLES << 8) | message); }

void put_nft_header(MessageBuilder& message, int family, uint16_t resource) {
  nfgenmsg header{};
  header.nfgen_family = static_cast<uint8_t>(family);
  header.version = NFNETLINK_V0;
  header.res_id = htons(resource);
  message.header(header);
}

const NatHook* hook_of(NatChain chain) {
  static const NatHook kHooks[] = {
      {NF_INET_PRE_ROUTING, -100}, {NF_INET_LOCAL_IN, 100}, {NF_INET_LOCAL_OUT, -100}, {NF_INET_POST_ROUTING, 100}};
  size_t index = static_cast<size_t>(chain);
  return index < std::size(kHooks) ? &kHooks[index] : nullptr;
}

bool FoundTable::is_as_made(NatChain chain) const {
  auto there = chains.find(chain_name(chain));
  if (there == chains.end()) return false;
  const NatHook* hook = hook_of(chain);
  return there->second == (hook ? chain_text(hook->number, hook->priority, NF_ACCEPT) : std::string());
}

Result<FoundTable> read_nat_table(NetlinkSocket& netfilter, int family) {
  FoundTable found;
  Status done = read_chains(netfilter, family, &found);
  if (!done) return done.error();
  if (found.chains.empty()) return found;
  std::map<std::string, std::string> sets;
  done = read_sets(netfilter, family, &sets, &found.named_sets);
  std::vector<RuleRecord> rules;
  if (done)
    done = netfilter.dump(
        nft_type(NFT_MSG_GETRULE), "list NAT rules",
        [&](MessageBuilder& message) {
          put_nft_header(message, family);
          message.text(NFTA_RULE_TABLE, kNatTable);
        },
        [&](const Message& message) { return note_rule(message, &rules); });
  if (!done) return done.error();
  for (const RuleRecord& rule : rules) {
    std::string text;
    if (!rule_text({rule.expressions.data(), rule.expressions.size()}, sets, &text))
      return Error::of(EPROTO, "list NAT rules");
    found.rules[rule.chain].push_back({std::move(text), rule.handle});
  }
  return found;
}

OwnRules::OwnRules(const NatInput& input) {
  MasqueradePlan everything;
  everything.istio = true;
  everything.migration_over_tcp = true;
  for (const NatRule& rule : nat_table(everything, input).rules)
    if (rule.action != NatRule::Action::kDestinationNat) texts_[rule.chain].push_back(rule_text(rule));
  to_guest_ = rule_text({NatChain::kOutput, {}, NatRule::Action::kDestinationNat, NatChain::kInput, input.guest});
}

std::vector<FoundRule> OwnRules::in(const FoundTable& table, NatChain chain) const {
  std::vector<FoundRule> own;
  auto rules = table.rules.find(chain_name(chain));
  if (rules == table.rules.end()) return own;
  auto fixed = texts_.find(chain);
  auto is_own = [&](const FoundRule& rule) {
    if (hook_of(chain) == nullptr) return true;
    if (fixed != texts_.end() && std::count(fixed->second.begin(), fixed->second.end(), rule.text) != 0) return true;
    size_t size = to_guest_.size();
    return chain == NatChain::kOutput && rule.text.size() >= size &&
           rule.text.compare(rule.text.size() - size, size, to_guest_) == 0;
  };
  std::copy_if(rules->second.begin(), rules->second.end(), std::back_inserter(own), is_own);
  return own;
}

}  // namespace privsep
