#include "append_only.h"

#include <linux/fs.h>
#include <sys/ioctl.h>

#include <cerrno>

namespace privsep {

namespace {

bool has_no_flags(int error) { return error == ENOTTY || error == EOPNOTSUPP || error == ENOSYS; }

}  // namespace

Result<bool> set_append_only(int fd, bool on) {
  int flags = 0;
  if (::ioctl(fd, FS_IOC_GETFLAGS, &flags) != 0) {
    if (has_no_flags(errno)) return false;
    return Error::last("ioctl FS_IOC_GETFLAGS");
  }
  int wanted = on ? flags | FS_APPEND_FL : flags & ~FS_APPEND_FL;
  if (wanted != flags && ::ioctl(fd, FS_IOC_SETFLAGS, &wanted) != 0) {
    if (has_no_flags(errno)) return false;
    return Error::last("ioctl FS_IOC_SETFLAGS");
  }
  return true;
}

}  // namespace privsep
