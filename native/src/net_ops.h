// Network operations in a launcher pod's network namespace: what the addon calls.
//
// Each function runs whole on one privileged thread (CLONE_FS unshared) whose effective set already
// holds what the method declares. It enters the namespace, works, and returns to the thread's own one;
// where that fails it says so, and the thread must be thrown away.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "deadline.h"
#include "result.h"

namespace privsep {

// dev:inode of a namespace.
struct NamespaceId {
  uint64_t dev = 0;
  uint64_t ino = 0;
};

struct LinkAddress {
  std::string ip;  // text form of inet_ntop
  uint32_t prefix_length = 0;
};

struct LinkState {
  uint32_t index = 0;
  std::string name;
  std::string kind;       // "veth", "bridge", "dummy", "tun", ...; empty for links without one
  std::string operstate;  // unknown, notpresent, down, lowerlayerdown, testing, dormant, up
  bool up = false;
  std::string mac;  // lower case, colon separated; empty for none
  uint32_t mtu = 0;
  uint32_t controller = 0;             // index of the bridge, 0 for none
  std::vector<LinkAddress> addresses;  // IPv4 first, each family in kernel order
  std::optional<bool> port_learning;   // only for bridge ports
  bool route_localnet = false;
};

// A route of the main table.
struct RouteState {
  std::string destination;  // CIDR; 0.0.0.0/0 or ::/0 for a default route
  std::string gateway;      // empty for a route without next hop
  uint32_t link_index = 0;  // 0 for routes without a single output link (blackhole, multipath)
  uint32_t metric = 0;
};

struct NetworkSysctls {
  uint32_t ipv4_arp_ignore = 0;
  bool ipv4_forwarding = false;
  bool ipv6_forwarding = false;
  uint32_t ipv4_ping_group_start = 0;
  uint32_t ipv4_ping_group_end = 0;
  uint32_t ipv4_unprivileged_port_start = 0;
};

struct NetworkState {
  std::vector<LinkState> links;    // at most 1024, at most 64 addresses each
  std::vector<RouteState> routes;  // IPv4 first; at most 4096
  NetworkSysctls sysctls;
};

enum class Protocol : uint8_t { kTcp = 6, kUdp = 17, kSctp = 132 };  // IP protocol numbers

struct ForwardedPort {
  Protocol protocol = Protocol::kTcp;
  uint32_t port = 0;
  uint32_t end_port = 0;  // 0 for a single port
};

struct GuestNetwork {
  std::string network;  // network address, or any address in it
  uint32_t prefix_length = 0;
};

struct BridgePlan {
  // The bridge has an address, from which the launcher's DHCP server answers. Not with managed taps.
  bool link_address = true;
};

struct MasqueradePlan {
  GuestNetwork ipv4;
  GuestNetwork ipv6;
  std::vector<ForwardedPort> ports;  // at most 1024; none: every port
  bool istio = false;
  bool migration_over_tcp = false;
};

// Desired set-up of one pod link. Names other than pod_interface are derived.
struct AttachmentPlan {
  std::string pod_interface;
  bool primary = false;  // tap0, else "tap" + pod_interface without its first 3 characters
  uint32_t index = 0;    // 0..99
  uint32_t queues = 0;   // 0 or 1: single queue; at most 256
  std::variant<BridgePlan, MasqueradePlan> binding;
};

struct DetachmentPlan {
  std::string pod_interface;
  bool primary = false;
};

// The label with which taps are made where SELinux is active: QEMU may take over taps of its own domain only.
struct TapLabel {
  std::string context;  // of the launcher's process
  bool required = true;  // else, where it cannot be taken, taps get the helper's
  int device_directory = -1;  // with the device kTunName; outlives the call
  Deadline deadline;
};

struct NetworkPlan {
  std::vector<AttachmentPlan> attachments;  // at most 64
  std::vector<DetachmentPlan> detachments;  // at most 64
  uint32_t uid = 0;                         // owner of taps; equal to gid
  uint32_t gid = 0;
  std::optional<TapLabel> tap_label;
  std::optional<uint32_t> passt_gid;  // where passt connects the guest: the group that it runs as
  std::optional<Deadline> deadline;   // after which nothing is looked at any more
};

// Links with addresses, main routes and the listed sysctls of the namespace. Changes nothing.
// `forbidden`: namespaces never to be entered; refused with EPERM.
Result<NetworkState> observe_network(int netns_fd, const std::vector<NamespaceId>& forbidden,
                                     std::optional<Deadline> deadline = std::nullopt);

// A chain of the tables `ip nat` and `ip6 nat`.
struct NatChainState {
  std::string family;  // "ip" or "ip6"
  std::string name;
  std::string hook;  // hook number, priority and policy of a base chain; empty for a regular one
  uint32_t rules = 0;
};

// The NAT chains of the namespace with their numbers of rules, at most 16384 of each family; see kMaxDumped too.
// Changes nothing.
Result<std::vector<NatChainState>> observe_nat(int netns_fd, const std::vector<NamespaceId>& forbidden,
                                               std::optional<Deadline> deadline = std::nullopt);

// What apply_network would do now, at most 256 operations, in its order: nothing when the set-up is as planned.
// The list ends at a link that is yet to be made, since what follows depends on it. Changes nothing.
Result<std::vector<std::string>> pending_changes(int netns_fd, const std::vector<NamespaceId>& forbidden,
                                                 const NetworkPlan& plan);

// Brings the namespace to the planned set-up and tells whether anything was changed. May be repeated at
// any time, also after a call that was killed half-way. Detachments come first and stay done. When an
// attachment fails whatever this call did for attachments is undone; the error's `unchanged` tells whether
// that succeeded and nothing else was changed for good. EBUSY, EAGAIN, EINTR, ENOBUFS and ENOMEM are retried
// before, three attempts in a second.
Result<bool> apply_network(int netns_fd, const std::vector<NamespaceId>& forbidden, const NetworkPlan& plan);

}  // namespace privsep
