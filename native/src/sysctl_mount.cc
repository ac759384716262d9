#include "sysctl_mount.h"

#include <fcntl.h>
#include <sys/mount.h>
#include <sys/statvfs.h>

#include "fd.h"

namespace privsep {

namespace {

constexpr const char* kSysctls = "/proc/sys/net";

Result<bool> is_writable(const char* path) {
  struct statvfs fs {};
  if (::statvfs(path, &fs) != 0) return Error::last(std::string("statvfs ") + path);
  return (fs.f_flag & ST_RDONLY) == 0;
}

}  // namespace

Status make_network_sysctls_writable() {
  auto writable = is_writable(kSysctls);
  if (!writable) return writable.error();
  if (*writable) return ok();
  Fd tree(::open_tree(AT_FDCWD, kSysctls, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_SYMLINK_NOFOLLOW));
  if (!tree.valid()) return Error::last("open_tree /proc/sys/net");
  mount_attr attributes{};
  attributes.attr_clr = MOUNT_ATTR_RDONLY;
  attributes.attr_set = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC;
  attributes.propagation = MS_PRIVATE;
  if (::mount_setattr(tree.get(), "", AT_EMPTY_PATH, &attributes, sizeof attributes) != 0) {
    return Error::last("mount_setattr /proc/sys/net");
  }
  if (::move_mount(tree.get(), "", AT_FDCWD, kSysctls, MOVE_MOUNT_F_EMPTY_PATH) != 0) {
    return Error::last("move_mount /proc/sys/net");
  }
  writable = is_writable(kSysctls);
  if (!writable) return writable.error();
  return *writable ? ok() : Status(Error::of(EROFS, "/proc/sys/net"));
}

}  // namespace privsep
