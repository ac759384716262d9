#include "net_plan.h"

#include <sys/socket.h>

#include <algorithm>
#include <set>

namespace privsep {
namespace {

Error invalid(const std::string& what) { return Error::refusal(EINVAL, what); }

bool is_link_name(const std::string& name) {
  if (name.empty() || name.size() > kMaxLinkName || name == "." || name == "..") return false;
  return std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
           c == '-';
  });
}

bool starts_with(const std::string& text, const std::string& prefix) {
  return text.compare(0, prefix.size(), prefix) == 0;
}

// The address with its low `bits` host bits cleared and `offset` added.
IpAddress nth_address(IpAddress address, uint8_t prefix_length, uint8_t offset) {
  for (int bit = prefix_length; bit < address.size * 8; ++bit)
    address.bytes[bit / 8] = static_cast<uint8_t>(address.bytes[bit / 8] & ~(0x80 >> (bit % 8)));
  address.bytes[address.size - 1] = static_cast<uint8_t>(address.bytes[address.size - 1] + offset);
  return address;
}

Status check_masquerade(const MasqueradePlan& plan) {
  for (auto [network, family] : {std::pair(&plan.ipv4, AF_INET), std::pair(&plan.ipv6, AF_INET6)}) {
    Result<GuestAddresses> addresses = guest_addresses(*network, family);
    if (!addresses) return addresses.error();
  }
  if (plan.ports.size() > kMaxPorts) return invalid("more than 1024 ports");
  for (const ForwardedPort& port : plan.ports) {
    if (port.protocol != Protocol::kTcp && port.protocol != Protocol::kUdp && port.protocol != Protocol::kSctp)
      return invalid("protocol of a port");
    bool range = port.end_port != 0;
    if (port.port < 1 || port.port > 65535) return invalid("port " + std::to_string(port.port));
    if (range && (port.end_port < port.port || port.end_port > 65535))
      return invalid("port range " + std::to_string(port.port) + "-" + std::to_string(port.end_port));
  }
  return ok();
}

}  // namespace

Result<LinkNames> link_names(const std::string& pod_interface, bool primary) {
  auto bad = [&] { return invalid("pod interface name \"" + pod_interface.substr(0, 2 * kMaxLinkName) + "\""); };
  if (!is_link_name(pod_interface) || pod_interface == "lo" || starts_with(pod_interface, "k6t-") ||
      starts_with(pod_interface, "k6d-"))
    return bad();
  std::string stem = starts_with(pod_interface, "pod") ? pod_interface.substr(3) : pod_interface;
  if (stem.empty() || (!primary && pod_interface.size() <= 3)) return bad();
  LinkNames names;
  names.pod = pod_interface;
  names.bridge = "k6t-" + stem;
  names.nic = stem + "-nic";
  names.tap = primary ? "tap0" : "tap" + pod_interface.substr(3);
  names.aside = "k6d-" + stem;
  for (const std::string* name : {&names.bridge, &names.nic, &names.tap, &names.aside})
    if (!is_link_name(*name)) return bad();
  return names;
}

Result<GuestAddresses> guest_addresses(const GuestNetwork& network, int family) {
  std::string text = network.network.substr(0, 64) + "/" + std::to_string(network.prefix_length);
  std::optional<IpAddress> parsed = IpAddress::parse(network.network);
  if (!parsed || parsed->family() != family) return invalid("guest network " + text);
  if (network.prefix_length < 1 || network.prefix_length > parsed->size * 8u - 2)
    return invalid("guest network " + text + " has no room for two hosts");
  GuestAddresses addresses;
  addresses.prefix_length = static_cast<uint8_t>(network.prefix_length);
  addresses.gateway = nth_address(*parsed, addresses.prefix_length, 1);
  addresses.guest = nth_address(*parsed, addresses.prefix_length, 2);
  if (!is_global_unicast(addresses.gateway)) return invalid("guest network " + text);
  return addresses;
}

IpAddress bridge_address(uint32_t index) { return *IpAddress::parse("169.254.75.1" + std::to_string(index)); }

Status check_plan(const NetworkPlan& plan) {
  if (plan.uid != plan.gid) return invalid("owner and group of taps differ");
  if (plan.attachments.size() > kMaxAttachments) return invalid("more than 64 attachments");
  if (plan.detachments.size() > kMaxAttachments) return invalid("more than 64 detachments");
  std::set<std::string> taken;
  auto take = [&](const std::string& pod_interface, bool primary) -> Status {
    Result<LinkNames> names = link_names(pod_interface, primary);
    if (!names) return names.error();
    for (const std::string& name : {names->pod, names->bridge, names->nic, names->tap, names->aside})
      if (!taken.insert(name).second) return invalid("two networks need a link named " + name);
    return ok();
  };
  bool masquerade = false;
  for (const AttachmentPlan& attachment : plan.attachments) {
    Status done = take(attachment.pod_interface, attachment.primary);
    if (!done) return done;
    if (attachment.index > 99) return invalid("index " + std::to_string(attachment.index));
    if (attachment.queues > kMaxQueues) return invalid("queues " + std::to_string(attachment.queues));
    const auto* plan_of_masquerade = std::get_if<MasqueradePlan>(&attachment.binding);
    if (plan_of_masquerade == nullptr) continue;
    if (masquerade) return invalid("two masquerade bindings");
    masquerade = true;
    done = check_masquerade(*plan_of_masquerade);
    if (!done) return done;
  }
  for (const DetachmentPlan& detachment : plan.detachments) {
    Status done = take(detachment.pod_interface, detachment.primary);
    if (!done) return done;
  }
  return ok();
}

}  // namespace privsep
