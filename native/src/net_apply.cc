#include "net_apply.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <time.h>

#include "deadline.h"
#include "net_attach.h"
#include "net_namespace.h"
#include "net_nft.h"
#include "net_observe.h"

namespace privsep {
namespace {

constexpr int kAttempts = 3;
constexpr int64_t kRetryWithinMs = 1000;
constexpr timespec kPause{0, 100 * 1000 * 1000};
constexpr size_t kMaxPending = 256;

// Reads what is there and hands it to `work`, whose changes go to `changes`.
Status with_inventory(const NetworkPlan& plan, Transaction& changes, NetlinkSocket& route,
                      const std::function<Status(Attempt&)>& work) {
  Result<Inventory> inventory = read_inventory(route);
  if (!inventory) return inventory.error();
  Links links(route, changes);
  Attempt attempt{std::move(*inventory), links, changes, {plan.uid, plan.gid}, plan.tap_label, {}};
  Status done = work(attempt);
  if (done) return done;
  // While the socket and the links that the undo steps use are there.
  Status undone = changes.undo();
  done.error().unchanged = done.error().unchanged && undone;
  if (!undone) done.error().operation += "; undo failed: " + undone.error().operation;
  return done;
}

// The guest behind a masquerade bridge: nobody, in a family that the bridge has no address of.
NatInput guest_behind(const LinkRecord& bridge, const LinkNames& names, int family) {
  for (const AddressRecord& it : bridge.addresses) {
    if (it.address.family() != family || !is_global_unicast(it.address)) continue;
    Result<GuestAddresses> guest = guest_addresses({it.address.text(), it.prefix_length}, family);
    if (guest) return {names.pod, names.bridge, guest->gateway, guest->guest, {}};
  }
  IpAddress nobody = IpAddress::of(family, in6addr_any.s6_addr);
  return {names.pod, names.bridge, nobody, nobody, {}};
}

// Of masquerade binding, which its bridge shows. They go before the links that they name, so that a call
// which is cut short leaves the bridge and with it the reason to look for them.
Status detach_rules(Attempt& attempt, const LinkNames& names, std::optional<Deadline> deadline) {
  const LinkRecord* bridge = attempt.before.find(names.bridge);
  if (bridge == nullptr || bridge->mac != kMasqueradeMac) return ok();
  Result<NetlinkSocket> netfilter = NetlinkSocket::open(NETLINK_NETFILTER, deadline);
  if (!netfilter) return netfilter.error();
  return remove_nat(*netfilter, attempt.changes,
                    {guest_behind(*bridge, names, AF_INET), guest_behind(*bridge, names, AF_INET6)});
}

Status detach_all(Attempt& attempt, const NetworkPlan& plan) {
  for (const DetachmentPlan& detachment : plan.detachments) {
    Result<LinkNames> names = link_names(detachment.pod_interface, detachment.primary);
    Status done = names ? detach_rules(attempt, *names, plan.deadline) : Status(names.error());
    if (done) done = detach(attempt, *names);
    if (!done) return done;
  }
  return ok();
}

Status attach_all(Attempt& attempt, const NetworkPlan& plan) {
  for (const AttachmentPlan& attachment : plan.attachments) {
    Result<LinkNames> names = link_names(attachment.pod_interface, attachment.primary);
    if (!names) return names.error();
    const auto* masquerade = std::get_if<MasqueradePlan>(&attachment.binding);
    Status done = masquerade != nullptr
                      ? attach_masquerade(attempt, attachment, *masquerade, *names)
                      : attach_bridge(attempt, attachment, std::get<BridgePlan>(attachment.binding), *names);
    if (!done) return done;
  }
  Status allowed = plan.passt_gid ? allow_passt(attempt, *plan.passt_gid) : ok();
  if (!allowed) return allowed;
  if (attempt.nat.empty()) return ok();
  // Last: after it nothing can fail, so it never has to be taken back.
  Result<NetlinkSocket> netfilter = NetlinkSocket::open(NETLINK_NETFILTER, plan.deadline);
  if (!netfilter) return netfilter.error();
  return ensure_nat(*netfilter, attempt.changes, attempt.nat);
}

Status attempt_once(const NetworkPlan& plan, const StepHook& hook, bool* changed,
                    Status (*work)(Attempt&, const NetworkPlan&)) {
  Result<NetlinkSocket> route = NetlinkSocket::open(NETLINK_ROUTE, plan.deadline);
  if (!route) return route.error();
  Transaction changes(hook);
  Status done = with_inventory(plan, changes, *route, [&](Attempt& attempt) { return work(attempt, plan); });
  *changed = *changed || (done ? changes.changed() : changes.changed_for_good());
  return done;
}

Status attempt_repeatedly(const NetworkPlan& plan, const StepHook& hook, bool* changed,
                          Status (*work)(Attempt&, const NetworkPlan&)) {
  Status done = attempt_once(plan, hook, changed, work);
  // From the first failure on: where the kernel is merely slow there is a second attempt all the same.
  Deadline deadline = Deadline::after_ms(kRetryWithinMs);
  for (int i = 1; i < kAttempts && !done; ++i) {
    if (!is_transient(done.error().code) || !done.error().unchanged || deadline.passed()) break;
    ::nanosleep(&kPause, nullptr);
    done = attempt_once(plan, hook, changed, work);
  }
  return done;
}

}  // namespace

Result<bool> apply_plan(const NetworkPlan& plan, const StepHook& hook) {
  bool changed = false;
  Status done = plan.detachments.empty() ? ok() : attempt_repeatedly(plan, hook, &changed, detach_all);
  bool attaches = !plan.attachments.empty() || plan.passt_gid;
  if (done && attaches) done = attempt_repeatedly(plan, hook, &changed, attach_all);
  if (done) return changed;
  done.error().unchanged = done.error().unchanged && !changed;
  return done.error();
}

Result<bool> apply_network(int netns_fd, const std::vector<NamespaceId>& forbidden, const NetworkPlan& plan) {
  Status valid = check_plan(plan);
  if (!valid) return valid.error();
  return in_namespace<bool>(netns_fd, forbidden, [&] { return apply_plan(plan, {}); });
}

Result<std::vector<std::string>> pending_changes(int netns_fd, const std::vector<NamespaceId>& forbidden,
                                                 const NetworkPlan& plan) {
  Status valid = check_plan(plan);
  if (!valid) return valid.error();
  return in_namespace<std::vector<std::string>>(netns_fd, forbidden, [&]() -> Result<std::vector<std::string>> {
    std::vector<std::string> pending;
    StepHook note = [&](const std::string& operation) {
      if (pending.size() < kMaxPending) pending.push_back(operation);
      return kLeaveOut;
    };
    bool changed = false;
    Status done = attempt_once(plan, note, &changed, detach_all);
    if (done) done = attempt_once(plan, note, &changed, attach_all);
    // After an operation that was left out a failure only means that the next one needs it.
    if (!done && pending.empty()) return done.error();
    return pending;
  });
}

}  // namespace privsep
