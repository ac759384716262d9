#include "probe.h"

#include <fcntl.h>
#include <linux/if_link.h>
#include <linux/netfilter/nf_tables.h>
#include <linux/netfilter/nfnetlink.h>
#include <linux/rtnetlink.h>
#include <sys/mount.h>
#include <sys/socket.h>

#include "fd.h"
#include "kernel.h"
#include "net_socket.h"

namespace privsep {

namespace {

constexpr const char* kProbeLink = "privsep-probe";

// A system call with an invalid descriptor: whatever it answers but ENOSYS, the kernel knows it.
int unless_unknown(long result) { return result < 0 && (errno == ENOSYS || errno == EPERM) ? errno : 0; }

int probe_openat2() {
  open_how how{};
  return unless_unknown(kernel::openat2(-1, "", &how));
}

// A path that leads nowhere: the kernel looks for it once it knows the attribute.
int probe_nosymfollow() {
  mount_attr attributes{};
  attributes.attr_set = MOUNT_ATTR_NOSYMFOLLOW;
  if (::mount_setattr(-1, "", 0, &attributes, sizeof attributes) == 0) return 0;
  return errno == ENOENT || errno == EBADF ? 0 : errno;
}

int probe_peer_pidfd() {
  int pair[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) return errno;
  Fd first(pair[0]);
  Fd second(pair[1]);
  int pidfd = -1;
  socklen_t size = sizeof pidfd;
  if (::getsockopt(first.get(), SOL_SOCKET, kernel::kSoPeerPidfd, &pidfd, &size) != 0) return errno;
  Fd closed(pidfd);
  return 0;
}

int probe_pass_rights() {
  Fd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket.valid()) return errno;
  const int off = 0;
  return ::setsockopt(socket.get(), SOL_SOCKET, kernel::kSoPassRights, &off, sizeof off) == 0 ? 0 : errno;
}

int probe_pidfd_info() {
  Fd self(kernel::pidfd_open(::getpid()));
  if (!self.valid()) return errno;
  kernel::PidfdInfo info{};
  info.mask = kernel::kPidfdInfoPid;
  return ::ioctl(self.get(), kernel::kPidfdGetInfo, &info) == 0 ? 0 : errno;
}

int probe_pidfd_namespaces() {
  Fd self(kernel::pidfd_open(::getpid()));
  if (!self.valid()) return errno;
  Fd ns(::ioctl(self.get(), kernel::kPidfdGetMntNamespace, 0));
  return ns.valid() ? 0 : errno;
}

// A link address of three bytes fits no link; a kind that is not there is refused before that is seen.
int probe_link(const char* kind) {
  auto route = NetlinkSocket::open(NETLINK_ROUTE);
  if (!route) return route.error().code;
  const uint8_t address[3] = {};
  Status made = route->request(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, "probe link", [&](MessageBuilder& message) {
    message.header(ifinfomsg{});
    message.text(IFLA_IFNAME, kProbeLink);
    message.attribute(IFLA_ADDRESS, address, sizeof address);
    size_t nest = message.begin_nest(IFLA_LINKINFO);
    message.text(IFLA_INFO_KIND, kind);
    message.end_nest(nest);
  });
  return made || made.error().code == EINVAL ? 0 : made.error().code;
}

int probe_nf_tables() {
  auto netfilter = NetlinkSocket::open(NETLINK_NETFILTER);
  if (!netfilter) return netfilter.error().code;
  Status listed = netfilter->dump(
      (NFNL_SUBSYS_NFTABLES << 8) | NFT_MSG_GETTABLE, "list tables",
      [](MessageBuilder& message) { message.header(nfgenmsg{}); }, [](const Message&) { return 0; });
  return listed || listed.error().code == EAGAIN ? 0 : listed.error().code;
}

int probe_tun() {
  Fd tun(::open("/dev/net/tun", O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  return tun.valid() ? 0 : errno;
}

}  // namespace

std::vector<KernelFeature> probe_kernel() {
  return {{"openat2", probe_openat2()},
          {"open_tree", unless_unknown(::syscall(SYS_open_tree, -1, "", 0))},
          {"move_mount", unless_unknown(::syscall(SYS_move_mount, -1, "", -1, "", 0))},
          {"mount_setattr", unless_unknown(::syscall(SYS_mount_setattr, -1, "", 0, nullptr, 0))},
          {"MOUNT_ATTR_NOSYMFOLLOW", probe_nosymfollow()},
          {"SO_PEERPIDFD", probe_peer_pidfd()},
          {"SO_PASSRIGHTS", probe_pass_rights()},
          {"PIDFD_GET_INFO", probe_pidfd_info()},
          {"PIDFD_GET_MNT_NAMESPACE", probe_pidfd_namespaces()},
          {"nf_tables", probe_nf_tables()},
          {"link type bridge", probe_link("bridge")},
          {"link type dummy", probe_link("dummy")},
          {"/dev/net/tun", probe_tun()}};
}

}  // namespace privsep
