// Set-up of single pod links. Everything is compared with what is there first, so each function may find
// its own work done, half done by a call that was killed, or not begun.
#pragma once

#include <vector>

#include "net_link.h"
#include "net_nat.h"
#include "net_observe.h"
#include "net_plan.h"
#include "net_tap.h"
#include "net_transaction.h"

namespace privsep {

// One attempt to apply a plan.
struct Attempt {
  Inventory before;
  Links& links;
  Transaction& changes;
  TapOwner owner;
  std::optional<TapLabel> tap_label;
  std::vector<NatTable> nat;  // wanted, collected from masquerade bindings
};

// Bridge binding: the pod link becomes a port of a bridge, under another name and MAC; the guest takes its
// place. A dummy, down, keeps its name, MAC and addresses for whoever looks them up.
//
// The pod link's addresses exist nowhere else and setting it down loses the IPv6 ones, so the dummy is
// made first, under a name of its own, and holds every address before the pod link is touched. Whatever
// can fail for want of memory or devices (dummy, bridge, tap) is made before too; what remains are changes
// to one link. The pod link keeps its MAC until the dummy is complete: equal MACs tell a later call that
// addresses may be missing from the dummy.
Status attach_bridge(Attempt& attempt, const AttachmentPlan& plan, const BridgePlan& bridge, const LinkNames& names);

// Masquerade binding: a bridge with the guest's gateway addresses beside the untouched pod link; NAT
// between the two is left in attempt.nat.
Status attach_masquerade(Attempt& attempt, const AttachmentPlan& plan, const MasqueradePlan& masquerade,
                         const LinkNames& names);

// passt binding: processes of the group may send echo requests, and every process listen on the ports below 1024
// (ip-sysctl: ping_group_range, ip_unprivileged_port_start). passt itself is the launcher's.
Status allow_passt(Attempt& attempt, uint32_t gid);

// Removes bridge, tap and dummy. The pod link of bridge binding stays, up, under its changed name.
Status detach(Attempt& attempt, const LinkNames& names);

}  // namespace privsep
