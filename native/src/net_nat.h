// NAT rules of masquerade binding as a table (KubeVirt pkg/network/setup/netpod/masquerade).
#pragma once

#include <string>
#include <vector>

#include "net_ops.h"
#include "net_record.h"

namespace privsep {

// Chains of the table `nat`, in the order in which they are made.
enum class NatChain : uint8_t { kPrerouting, kInput, kOutput, kPostrouting, kPreInbound, kPostInbound };
constexpr NatChain kNatChains[] = {NatChain::kPrerouting,  NatChain::kInput,      NatChain::kOutput,
                                   NatChain::kPostrouting, NatChain::kPreInbound, NatChain::kPostInbound};
const char* chain_name(NatChain chain);

// One condition; a rule's conditions are tested in order.
struct NatMatch {
  enum class Kind : uint8_t { kInputLink, kOutputLink, kSource, kDestination, kPorts, kPortRange };
  Kind kind;
  std::string link;                  // kInputLink, kOutputLink
  std::vector<IpAddress> addresses;  // kSource, kDestination: one of them
  Protocol protocol = Protocol::kTcp;
  std::vector<uint16_t> ports;  // kPorts: one of them; kPortRange: first and last
};

// Every rule counts, then does this.
struct NatRule {
  enum class Action : uint8_t { kJump, kReturn, kMasquerade, kDestinationNat, kSourceNat };
  NatChain chain;
  std::vector<NatMatch> matches;
  Action action;
  NatChain jump = NatChain::kInput;  // kJump
  IpAddress target;                  // kDestinationNat, kSourceNat
};

struct NatInput {
  std::string pod_link;
  std::string bridge;
  IpAddress gateway;
  IpAddress guest;
  IpAddress pod_address;  // the pod link's first of the family
};

// The table `nat` of one family.
struct NatTable {
  int family = 0;  // AF_INET or AF_INET6
  NatInput input;
  std::vector<NatRule> rules;
};

NatTable nat_table(const MasqueradePlan& plan, const NatInput& input);

}  // namespace privsep
