#include "net_sysctl.h"

#include <fcntl.h>
#include <unistd.h>

#include "fd.h"

namespace privsep {

std::string sysctl_name(Sysctl key, const std::string& link) {
  switch (key) {
    case Sysctl::kIpv4ArpIgnore:
      return "net/ipv4/conf/all/arp_ignore";
    case Sysctl::kIpv4Forwarding:
      return "net/ipv4/ip_forward";
    case Sysctl::kIpv4PingGroupRange:
      return "net/ipv4/ping_group_range";
    case Sysctl::kIpv4UnprivilegedPortStart:
      return "net/ipv4/ip_unprivileged_port_start";
    case Sysctl::kIpv4RouteLocalnet:
      return "net/ipv4/conf/" + link + "/route_localnet";
    case Sysctl::kIpv6Forwarding:
      return "net/ipv6/conf/all/forwarding";
    case Sysctl::kIpv6Disable:
      return "net/ipv6/conf/" + link + "/disable_ipv6";
  }
  return {};
}

Result<std::string> read_sysctl(Sysctl key, const std::string& link) {
  std::string name = sysctl_name(key, link);
  Fd fd(::open(("/proc/sys/" + name).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!fd.valid()) return Error::last("read " + name);
  char text[64];
  ssize_t size = ::read(fd.get(), text, sizeof text);
  if (size < 0) return Error::last("read " + name);
  std::string value(text, static_cast<size_t>(size));
  while (!value.empty() && value.back() == '\n') value.pop_back();
  return value;
}

Status write_sysctl(Sysctl key, const std::string& link, const std::string& value) {
  std::string name = sysctl_name(key, link);
  Fd fd(::open(("/proc/sys/" + name).c_str(), O_WRONLY | O_TRUNC | O_CLOEXEC | O_NOFOLLOW));
  if (!fd.valid()) return Error::last("write " + name);
  ssize_t size = ::write(fd.get(), value.data(), value.size());
  if (size < 0) return Error::last("write " + name);
  return static_cast<size_t>(size) == value.size() ? ok() : Status(Error::of(EIO, "write " + name));
}

}  // namespace privsep
