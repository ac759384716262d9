#include "cgroup_namespace.h"

#include <fcntl.h>
#include <sched.h>

#include "fd.h"
#include "walk.h"

namespace privsep {

Status join_cgroup_namespace(const std::string& path) {
  Fd wanted(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!wanted.valid()) return Error::last("open " + path);
  Fd own(::open("/proc/thread-self/ns/cgroup", O_RDONLY | O_CLOEXEC));
  if (!own.valid()) return Error::last("open own cgroup namespace");
  auto there = stat_fd(wanted.get(), path);
  if (!there) return there.error();
  auto here = stat_fd(own.get(), "own cgroup namespace");
  if (!here) return here.error();
  if (same_inode(*there, *here)) return ok();
  if (::setns(wanted.get(), CLONE_NEWCGROUP) != 0) return Error::last("setns " + path);
  return ok();
}

}  // namespace privsep
