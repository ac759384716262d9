// NAT tables in the kernel.
#pragma once

#include "net_nat.h"
#include "net_ops.h"
#include "net_socket.h"
#include "net_transaction.h"

namespace privsep {

// Makes the six chains of each table hold exactly the wanted rules, in one nf_tables transaction, unless
// they do already. Other chains of these tables and other tables are left alone: `ip nat` is also where
// iptables-nft keeps the rules of a sidecar.
Status ensure_nat(NetlinkSocket& netfilter, Transaction& changes, const std::vector<NatTable>& tables);

// Takes the six chains of both families away in one nf_tables transaction, and a table with its last chain.
Status remove_nat(NetlinkSocket& netfilter, Transaction& changes);

// The chains of `ip nat` and `ip6 nat` with their numbers of rules.
Result<std::vector<NatChainState>> list_nat(NetlinkSocket& netfilter);

}  // namespace privsep
