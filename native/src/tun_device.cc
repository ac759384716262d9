#include "tun_device.h"

#include <fcntl.h>
#include <linux/if_tun.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>

#include <cstring>

#include "walk.h"

namespace privsep {

namespace {

const dev_t kTunNumber = makedev(10, 200);
constexpr const char* kLabelName = "security.selinux";
// What runtimes give the devices of a container; without categories it is open to each.
constexpr char kContainerFile[] = "system_u:object_r:container_file_t:s0";

Status label(const std::string& path) {
  if (::setxattr(path.c_str(), kLabelName, kContainerFile, sizeof kContainerFile, 0) == 0) return ok();
  return Error::last("setxattr security.selinux of an own tun device");
}

}  // namespace

int open_tun_device(int directory, const char* name) {
  int fd = ::openat(directory, name, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return -1;
  struct stat node {};
  if (::fstat(fd, &node) == 0) {
    if (S_ISCHR(node.st_mode) && node.st_rdev == kTunNumber) return fd;
    errno = ENODEV;
  }
  int error = errno;
  ::close(fd);
  errno = error;
  return -1;
}

TapRequests::TapRequests(const std::string& name, uint32_t uid, uint32_t gid, bool multi_queue) : uid_(uid), gid_(gid) {
  name.copy(link_.ifr_name, IFNAMSIZ - 1);
  link_.ifr_flags =
      static_cast<short>(multi_queue ? IFF_TAP | IFF_MULTI_QUEUE | IFF_NO_PI : IFF_TAP | IFF_TUN_EXCL | IFF_ONE_QUEUE);
}

const char* TapRequests::operation(int step) {
  constexpr const char* kOperations[kCount] = {"create tap", "set owner of", "set group of", "make persistent"};
  return kOperations[step];
}

int TapRequests::make(int tun, int step) {
  const unsigned long commands[kCount] = {TUNSETIFF, TUNSETOWNER, TUNSETGROUP, TUNSETPERSIST};
  const unsigned long arguments[kCount] = {reinterpret_cast<unsigned long>(&link_), uid_, gid_, 1};
  return ::ioctl(tun, commands[step], arguments[step]) == 0 ? 0 : errno;
}

Result<Fd> make_labelled_tun_device() {
  Fd context(::fsopen("tmpfs", FSOPEN_CLOEXEC));
  if (!context.valid()) return Error::last("fsopen tmpfs");
  if (::fsconfig(context.get(), FSCONFIG_SET_STRING, "size", "4096", 0) != 0 ||
      ::fsconfig(context.get(), FSCONFIG_SET_STRING, "mode", "0755", 0) != 0 ||
      ::fsconfig(context.get(), FSCONFIG_CMD_CREATE, nullptr, nullptr, 0) != 0) {
    return Error::last("fsconfig tmpfs");
  }
  Fd directory(::fsmount(context.get(), FSMOUNT_CLOEXEC, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC));
  if (!directory.valid()) return Error::last("fsmount tmpfs");
  if (::mknodat(directory.get(), kTunName, S_IFCHR, kTunNumber) != 0) return Error::last("mknod of an own tun device");
  if (::fchmodat(directory.get(), kTunName, 0666, 0) != 0) return Error::last("chmod of an own tun device");
  // The device cgroup decides about opening it.
  Fd tun(open_tun_device(directory.get(), kTunName));
  if (!tun.valid()) return Error::last("open an own tun device");
  auto labelled = label(fd_path(directory.get()) + "/" + kTunName);
  if (labelled) labelled = label(fd_path(directory.get()) + "/.");
  if (!labelled) return labelled.error();
  return directory;
}

}  // namespace privsep
