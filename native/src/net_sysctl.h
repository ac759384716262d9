// The kernel parameters that VM networking reads or writes, and no others. Files below /proc/sys/net show
// the network namespace of the thread that opens them.
#pragma once

#include <string>

#include "result.h"

namespace privsep {

enum class Sysctl {
  kIpv4ArpIgnore,              // net/ipv4/conf/all/arp_ignore
  kIpv4Forwarding,             // net/ipv4/ip_forward
  kIpv4PingGroupRange,         // net/ipv4/ping_group_range
  kIpv4UnprivilegedPortStart,  // net/ipv4/ip_unprivileged_port_start
  kIpv4RouteLocalnet,          // net/ipv4/conf/<link>/route_localnet
  kIpv6Forwarding,             // net/ipv6/conf/all/forwarding
  kIpv6Disable,                // net/ipv6/conf/<link>/disable_ipv6
};

// `link` matters for the per-link ones only and must be a valid link name.
// Reads give the text without the final newline.
Result<std::string> read_sysctl(Sysctl key, const std::string& link = {});
Status write_sysctl(Sysctl key, const std::string& link, const std::string& value);
std::string sysctl_name(Sysctl key, const std::string& link);

}  // namespace privsep
