#include "net_attach.h"

#include <sys/random.h>
#include <sys/socket.h>

#include <algorithm>

#include "net_sysctl.h"

namespace privsep {
namespace {

// Limits of tun devices and of Ethernet.
constexpr uint32_t kMinMtu = 68;
constexpr uint32_t kMaxMtu = 65521;

Error collision(const LinkRecord& link, const std::string& wanted) {
  return Error::refusal(EEXIST, "type collision on link " + link.name + ": actual " +
                                    (link.kind.empty() ? "device" : link.kind) + ", requested " + wanted);
}

Error missing(const std::string& name) { return Error::of(ENODEV, "pod link (" + name + ") is missing"); }

Status check_pod_link(const LinkRecord& link) {
  if (link.mac && link.mtu >= kMinMtu && link.mtu <= kMaxMtu) return ok();
  return Error::refusal(EINVAL, "pod link " + link.name + " cannot be a bridge port: MTU " + std::to_string(link.mtu));
}

// Unicast, locally administered.
Result<MacAddress> random_mac() {
  MacAddress mac;
  if (::getrandom(mac.data(), mac.size(), 0) != static_cast<ssize_t>(mac.size())) return Error::last("getrandom");
  mac[0] = static_cast<uint8_t>((mac[0] & 0xfe) | 0x02);
  return mac;
}

Status ensure_sysctl(Attempt& attempt, Sysctl key, const std::string& link, const std::string& value,
                     bool created = false) {
  Result<std::string> now = read_sysctl(key, link);
  if (!now) return now.error();
  if (*now == value) return ok();
  Transaction::Change undo;
  if (!created) undo = [=, old = *now] { return write_sysctl(key, link, old); };
  return attempt.changes.run(
      "write " + sysctl_name(key, link), [&] { return write_sysctl(key, link, value); }, undo);
}

// Nodes may disable IPv6 for new links; an address is then refused with EACCES.
Status enable_ipv6(Attempt& attempt, const LinkRecord& link) {
  return ensure_sysctl(attempt, Sysctl::kIpv6Disable, link.name, "0", link.created);
}

Result<LinkRecord> ensure_bridge(Attempt& attempt, const std::string& name, const MacAddress& mac) {
  LinkRecord* found = attempt.before.find(name);
  if (found == nullptr) return attempt.links.create_bridge(name, mac);
  if (found->kind != "bridge") return collision(*found, "bridge");
  return *found;
}

Result<LinkRecord> ensure_tap(Attempt& attempt, const std::string& name, uint32_t queues, uint32_t mtu) {
  bool multi_queue = queues > 1;
  LinkRecord* found = attempt.before.find(name);
  if (found != nullptr) {
    if (found->kind != "tun") return collision(*found, "tap");
    const TunRecord& tun = found->tun;
    bool fits = tun.owner == attempt.owner.uid && tun.group == attempt.owner.gid && tun.multi_queue == multi_queue;
    if (!fits && found->carrier())
      return Error::refusal(EEXIST, "tap " + name + " is in use with another owner or queue layout");
    if (!fits) {
      Status removed = attempt.links.remove(*found);
      if (!removed) return removed.error();
      found = nullptr;
    }
  }
  Result<LinkRecord> tap = found == nullptr
                               ? create_tap(attempt.links, attempt.changes, name, attempt.owner, multi_queue,
                                            attempt.tap_label)
                           : found->up() ? Result<LinkRecord>(*found)
                                         : attempt.links.find(name);
  if (!tap) return tap;
  Status done = attempt.links.ensure_mtu(*tap, mtu);
  if (!done) return done.error();
  return tap;
}

AddressRecord wanted(const IpAddress& address, uint8_t prefix_length) {
  AddressRecord record;
  record.address = address;
  record.prefix_length = prefix_length;
  return record;
}

const AddressRecord* first_global(const LinkRecord& link, int family) {
  auto found = std::find_if(link.addresses.begin(), link.addresses.end(), [&](const AddressRecord& it) {
    return it.address.family() == family && is_global_unicast(it.address);
  });
  return found == link.addresses.end() ? nullptr : &*found;
}

// CNI removes a link by the name that it gave, so one that was unplugged may still be there, renamed, when its
// network is plugged again: then both names are taken by pod links, and the older one makes room.
Status make_room(Attempt& attempt, const LinkNames& names) {
  LinkRecord* old = attempt.before.find(names.nic);
  const LinkRecord* pod = attempt.before.find(names.pod);
  if (old == nullptr || old->controller != 0 || pod == nullptr) return ok();
  // Our dummy is never up.
  if (is_dummy(*pod) && !pod->up()) return ok();
  Status done = attempt.links.ensure_down(*old, attempt.before);
  if (done) done = attempt.links.rename(*old, "k6o" + std::to_string(old->index));
  return done;
}

// The pod link under its new name, else under its first one. Null when there is none: a dummy of that
// name beside our bridge is what an earlier call left when the pod link itself was taken away.
const LinkRecord* find_pod_link(Attempt& attempt, const LinkNames& names) {
  if (const LinkRecord* nic = attempt.before.find(names.nic)) return nic;
  const LinkRecord* pod = attempt.before.find(names.pod);
  if (pod == nullptr || !is_dummy(*pod)) return pod;
  bool left_behind = attempt.before.find(names.bridge) != nullptr && attempt.before.find(names.aside) == nullptr;
  return left_behind ? nullptr : pod;
}

// The dummy with every address of the pod link, under its last name or still aside.
Result<LinkRecord> ensure_dummy(Attempt& attempt, const LinkNames& names, const LinkRecord& pod_link) {
  LinkRecord* found = pod_link.name == names.nic ? attempt.before.find(names.pod) : nullptr;
  if (found == nullptr) found = attempt.before.find(names.aside);
  if (found != nullptr && !is_dummy(*found)) return collision(*found, "dummy");
  Result<LinkRecord> dummy = found != nullptr ? Result<LinkRecord>(*found)
                                              : attempt.links.create_dummy(names.aside, *pod_link.mac, pod_link.mtu);
  if (!dummy || dummy->mac != pod_link.mac) return dummy;
  for (const AddressRecord& address : pod_link.addresses) {
    auto same = [&](const AddressRecord& it) { return it.same(address); };
    if (std::any_of(dummy->addresses.begin(), dummy->addresses.end(), same)) continue;
    Status done = address.address.size == 16 ? enable_ipv6(attempt, *dummy) : ok();
    if (done) done = attempt.links.add_address(*dummy, address.address, address.prefix_length);
    if (!done) return done.error();
  }
  return dummy;
}

// From the first of these changes on the pod has no network of its own until the guest runs.
Status make_port(Attempt& attempt, const LinkNames& names, LinkRecord& pod_link, LinkRecord& dummy,
                 const LinkRecord& bridge) {
  Links& links = attempt.links;
  bool own_mac = pod_link.mac == dummy.mac;
  // A link that is up cannot be renamed before Linux 6.2.
  Status done = own_mac || pod_link.name != names.nic ? links.ensure_down(pod_link, attempt.before) : ok();
  if (done && pod_link.name != names.nic) done = links.rename(pod_link, names.nic);
  if (done && dummy.name != names.pod) done = links.rename(dummy, names.pod);
  if (done && own_mac) done = links.ensure_mac(pod_link, *bridge.mac);
  if (done) done = links.ensure_addresses(pod_link, AF_INET, {});
  if (done) done = links.ensure_addresses(pod_link, AF_INET6, {});
  if (done) done = links.ensure_controller(pod_link, bridge.index);
  if (done) done = links.ensure_learning_off(pod_link);
  if (done) done = links.ensure_up(pod_link);
  return done;
}

Status finish_tap(Attempt& attempt, LinkRecord& tap, const LinkRecord& bridge) {
  Status done = attempt.links.ensure_controller(tap, bridge.index);
  if (done) done = attempt.links.ensure_up(tap);
  return done;
}

}  // namespace

Status attach_bridge(Attempt& attempt, const AttachmentPlan& plan, const BridgePlan& bridge_plan,
                     const LinkNames& names) {
  Status done = make_room(attempt, names);
  if (!done) return done;
  const LinkRecord* found = find_pod_link(attempt, names);
  if (found == nullptr) return missing(names.pod);
  done = check_pod_link(*found);
  if (!done) return done;
  LinkRecord pod_link = *found;

  Result<LinkRecord> dummy = ensure_dummy(attempt, names, pod_link);
  if (!dummy) return dummy.error();
  bool has_ipv4 = first_global(*dummy, AF_INET) != nullptr;

  Result<MacAddress> mac = random_mac();
  if (!mac) return mac.error();
  Result<LinkRecord> bridge = ensure_bridge(attempt, names.bridge, *mac);
  if (!bridge) return bridge.error();
  std::vector<AddressRecord> addresses;
  if (has_ipv4 && bridge_plan.link_address) addresses.push_back(wanted(bridge_address(plan.index), 32));
  done = attempt.links.ensure_addresses(*bridge, AF_INET, addresses);
  if (done) done = attempt.links.ensure_up(*bridge);
  if (!done) return done;

  Result<LinkRecord> tap = ensure_tap(attempt, names.tap, plan.queues, pod_link.mtu);
  if (!tap) return tap.error();
  // The dummy has the guest's address: the pod must not answer for it on the bridge.
  if (has_ipv4) done = ensure_sysctl(attempt, Sysctl::kIpv4ArpIgnore, {}, "1");
  if (done) done = attempt.links.ensure_mtu(*dummy, pod_link.mtu);
  if (done) done = make_port(attempt, names, pod_link, *dummy, *bridge);
  if (done) done = finish_tap(attempt, *tap, *bridge);
  return done;
}

Status attach_masquerade(Attempt& attempt, const AttachmentPlan& plan, const MasqueradePlan& masquerade,
                         const LinkNames& names) {
  const LinkRecord* pod_link = attempt.before.find(names.pod);
  if (pod_link == nullptr) return missing(names.pod);
  Status done = check_pod_link(*pod_link);
  if (!done) return done;
  const LinkRecord* nic = attempt.before.find(names.nic);
  if (nic != nullptr) return Error::refusal(EEXIST, "pod link " + names.pod + " has bridge binding");

  Result<LinkRecord> bridge = ensure_bridge(attempt, names.bridge, kMasqueradeMac);
  if (!bridge) return bridge.error();
  done = attempt.links.ensure_mac(*bridge, kMasqueradeMac);
  if (done) done = attempt.links.ensure_mtu(*bridge, pod_link->mtu);
  if (!done) return done;

  bool routed[2] = {};
  for (int family : {AF_INET, AF_INET6}) {
    const AddressRecord* pod_address = first_global(*pod_link, family);
    std::vector<AddressRecord> addresses;
    if (pod_address != nullptr) {
      Result<GuestAddresses> guest =
          guest_addresses(family == AF_INET ? masquerade.ipv4 : masquerade.ipv6, family);
      if (!guest) return guest.error();
      addresses.push_back(wanted(guest->gateway, guest->prefix_length));
      auto listed = std::find_if(pod_link->addresses.begin(), pod_link->addresses.end(),
                                 [&](const AddressRecord& it) { return it.address.family() == family; });
      attempt.nat.push_back(
          nat_table(masquerade, {names.pod, names.bridge, guest->gateway, guest->guest, listed->address}));
      routed[family == AF_INET6] = true;
      if (family == AF_INET6) done = enable_ipv6(attempt, *bridge);
    }
    if (done) done = attempt.links.ensure_addresses(*bridge, family, addresses);
    if (!done) return done;
  }
  done = attempt.links.ensure_up(*bridge);
  if (done && routed[0]) done = ensure_sysctl(attempt, Sysctl::kIpv4RouteLocalnet, bridge->name, "1", bridge->created);
  if (!done) return done;

  Result<LinkRecord> tap = ensure_tap(attempt, names.tap, plan.queues, pod_link->mtu);
  if (!tap) return tap.error();
  done = finish_tap(attempt, *tap, *bridge);
  if (done && routed[0]) done = ensure_sysctl(attempt, Sysctl::kIpv4Forwarding, {}, "1");
  if (done && routed[1]) done = ensure_sysctl(attempt, Sysctl::kIpv6Forwarding, {}, "1");
  return done;
}

Status allow_passt(Attempt& attempt, uint32_t gid) {
  std::string group = std::to_string(gid);
  // The kernel shows the range with a tab.
  Status done = ensure_sysctl(attempt, Sysctl::kIpv4PingGroupRange, {}, group + '\t' + group);
  if (done) done = ensure_sysctl(attempt, Sysctl::kIpv4UnprivilegedPortStart, {}, "0");
  return done;
}

Status detach(Attempt& attempt, const LinkNames& names) {
  bool renamed = attempt.before.find(names.nic) != nullptr;
  for (const std::string* name : {&names.bridge, &names.tap, &names.pod, &names.aside}) {
    const LinkRecord* link = attempt.before.find(*name);
    if (link == nullptr) continue;
    bool ours = name == &names.bridge ? link->kind == "bridge"
                : name == &names.tap  ? link->kind == "tun"
                                      : is_dummy(*link);
    if (!ours) continue;
    // A dummy that is up and not beside a renamed link is the pod link itself: ours is never set up.
    if (name == &names.pod && !renamed && link->up()) continue;
    Status done = attempt.links.remove(*link);
    if (!done) return done;
  }
  return ok();
}

}  // namespace privsep
