// NAT tables in the kernel.
#pragma once

#include "net_nat.h"
#include "net_ops.h"
#include "net_socket.h"
#include "net_transaction.h"

namespace privsep {

// Makes the rules of each table be there, in their order and once, in one nf_tables transaction, unless they
// are already. Rules of others stay, in the base chains too: `ip nat` is also where a sidecar keeps its own.
Status ensure_nat(NetlinkSocket& netfilter, Transaction& changes, const std::vector<NatTable>& tables);

// Takes the rules for these guests away, one of each family, in one nf_tables transaction; a chain goes with
// its last rule and a table with its last chain.
Status remove_nat(NetlinkSocket& netfilter, Transaction& changes, const std::vector<NatInput>& inputs);

// The chains of `ip nat` and `ip6 nat` with their numbers of rules.
Result<std::vector<NatChainState>> list_nat(NetlinkSocket& netfilter);

}  // namespace privsep
