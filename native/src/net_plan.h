// Pure rules of VM networking: names, addresses and checks of a plan.
#pragma once

#include <string>
#include <vector>

#include "net_ops.h"
#include "net_record.h"
#include "result.h"

namespace privsep {

constexpr size_t kMaxAttachments = 64;
constexpr size_t kMaxPorts = 1024;
constexpr uint32_t kMaxQueues = 256;

// KubeVirt gives the bridge of masquerade binding this address.
constexpr MacAddress kMasqueradeMac = {0x02, 0, 0, 0, 0, 0};

// Link names of one attachment, all from the pod link's name (KubeVirt pkg/network/link).
struct LinkNames {
  std::string pod;     // what the CNI made; with bridge binding the dummy in the end
  std::string bridge;  // k6t-<x>, x = pod without one leading "pod"
  std::string nic;     // <x>-nic: the pod link once it is a port of the bridge
  std::string tap;     // tap0, or "tap" + pod without its first three characters
  std::string aside;   // k6d-<x>: the dummy until the pod link gives up its name
};

// EINVAL, refused, for a name that does not fit.
Result<LinkNames> link_names(const std::string& pod_interface, bool primary);

// Gateway (the bridge) and guest: the first two addresses of the network, host bits ignored.
struct GuestAddresses {
  IpAddress gateway;
  IpAddress guest;
  uint8_t prefix_length = 0;
};
Result<GuestAddresses> guest_addresses(const GuestNetwork& network, int family);

// 169.254.75.1<index>, index as decimal text.
IpAddress bridge_address(uint32_t index);

// Everything about a plan that can be checked without looking at the pod. EINVAL, refused.
Status check_plan(const NetworkPlan& plan);

}  // namespace privsep
