#include "net_nat.h"

#include <sys/socket.h>

namespace privsep {
namespace {

using Kind = NatMatch::Kind;
using Action = NatRule::Action;

constexpr uint32_t kSsh = 22;
const std::vector<uint16_t> kMigrationPorts = {49152, 49153};
const std::vector<uint16_t> kIstioPorts = {15000, 15001, 15004, 15006, 15008, 15009, 15020, 15021, 15053, 15090};

NatMatch source(std::vector<IpAddress> addresses) {
  return {Kind::kSource, {}, std::move(addresses), Protocol::kTcp, {}};
}
NatMatch destination(std::vector<IpAddress> addresses) {
  return {Kind::kDestination, {}, std::move(addresses), Protocol::kTcp, {}};
}
NatMatch tcp_ports(std::vector<uint16_t> ports) { return {Kind::kPorts, {}, {}, Protocol::kTcp, std::move(ports)}; }

NatMatch match(const ForwardedPort& port) {
  auto first = static_cast<uint16_t>(port.port);
  if (port.end_port == 0) return {Kind::kPorts, {}, {}, port.protocol, {first}};
  return {Kind::kPortRange, {}, {}, port.protocol, {first, static_cast<uint16_t>(port.end_port)}};
}

bool has_ssh(const ForwardedPort& port) {
  return port.end_port == 0 ? port.port == kSsh : port.port <= kSsh && kSsh <= port.end_port;
}

}  // namespace

const char* chain_name(NatChain chain) {
  static const char* const kNames[] = {"prerouting",          "input", "output", "postrouting", "KUBEVIRT_PREINBOUND",
                                       "KUBEVIRT_POSTINBOUND"};
  return kNames[static_cast<size_t>(chain)];
}

NatTable nat_table(const MasqueradePlan& plan, const NatInput& input) {
  bool ipv4 = input.guest.size == 4;
  IpAddress loopback = *IpAddress::parse(ipv4 ? "127.0.0.1" : "::1");
  // Envoy sends to the application from 127.0.0.6 and is reached on the pod's own address.
  std::vector<IpAddress> local_sources = {loopback};
  std::vector<IpAddress> local_destinations = {loopback};
  if (plan.istio && ipv4) {
    local_sources.push_back(*IpAddress::parse("127.0.0.6"));
    local_destinations.push_back(input.pod_address);
  }

  NatTable table;
  table.family = input.guest.family();
  table.input = input;
  auto add = [&](NatChain chain, std::vector<NatMatch> matches, Action action, IpAddress target = {}) {
    table.rules.push_back({chain, std::move(matches), action, NatChain::kInput, target});
  };
  auto jump = [&](NatChain chain, NatMatch condition, NatChain to) {
    table.rules.push_back({chain, {std::move(condition)}, Action::kJump, to, {}});
  };
  auto return_local = [&](const std::vector<uint16_t>& ports) {
    for (NatChain chain : {NatChain::kOutput, NatChain::kPostInbound})
      add(chain, {tcp_ports(ports), source({loopback})}, Action::kReturn);
  };

  add(NatChain::kPostrouting, {source({input.guest})}, Action::kMasquerade);
  jump(NatChain::kPrerouting, {Kind::kInputLink, input.pod_link, {}, Protocol::kTcp, {}}, NatChain::kPreInbound);
  jump(NatChain::kPostrouting, {Kind::kOutputLink, input.bridge, {}, Protocol::kTcp, {}}, NatChain::kPostInbound);
  if (plan.migration_over_tcp) return_local(kMigrationPorts);

  // With istio inbound traffic goes through the sidecar; only ssh still reaches the guest directly.
  for (const ForwardedPort& port : plan.ports) {
    if (!plan.istio)
      add(NatChain::kPreInbound, {match(port)}, Action::kDestinationNat, input.guest);
    else if (has_ssh(port))
      add(NatChain::kPreInbound, {tcp_ports({kSsh})}, Action::kDestinationNat, input.guest);
    add(NatChain::kPostInbound, {match(port), source(local_sources)}, Action::kSourceNat, input.gateway);
    add(NatChain::kOutput, {destination(local_destinations), match(port)}, Action::kDestinationNat, input.guest);
  }
  if (!plan.ports.empty()) return table;

  if (plan.istio) {
    return_local(kIstioPorts);
    add(NatChain::kPreInbound, {tcp_ports({kSsh})}, Action::kDestinationNat, input.guest);
  } else {
    add(NatChain::kPreInbound, {}, Action::kDestinationNat, input.guest);
  }
  add(NatChain::kPostInbound, {source(local_sources)}, Action::kSourceNat, input.gateway);
  add(NatChain::kOutput, {destination(local_destinations)}, Action::kDestinationNat, input.guest);
  return table;
}

}  // namespace privsep
