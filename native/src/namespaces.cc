#include "namespaces.h"

#include <fcntl.h>
#include <linux/nsfs.h>
#include <sched.h>
#include <sys/ioctl.h>

#include "proc_file.h"
#include "walk.h"

namespace privsep {

namespace {
constexpr size_t kMaxMountinfo = 8 << 20;
}

Result<Home> Home::here() {
  Home home;
  home.task_.reset(::open("/proc/thread-self", O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!home.task_.valid()) return Error::last("open /proc/thread-self");
  home.mnt_.reset(::openat(home.task_.get(), "ns/mnt", O_RDONLY | O_CLOEXEC));
  if (!home.mnt_.valid()) return Error::last("open mount namespace");
  home.net_.reset(::openat(home.task_.get(), "ns/net", O_RDONLY | O_CLOEXEC));
  if (!home.net_.valid()) return Error::last("open network namespace");
  auto mnt_id = stat_fd(home.mnt_.get(), "mount namespace");
  if (!mnt_id) return mnt_id.error();
  auto net_id = stat_fd(home.net_.get(), "network namespace");
  if (!net_id) return net_id.error();
  if (::fstatat(home.task_.get(), "ns/user", &home.user_id_, 0) != 0) return Error::last("stat user namespace");
  home.mnt_id_ = *mnt_id;
  home.net_id_ = *net_id;
  return home;
}

Status Home::enter_mount(int mntns) {
  auto id = stat_fd(mntns, "mount namespace");
  if (!id) return id.error();
  if (same_inode(*id, mnt_id_)) return Error::refusal(EPERM, "mount namespace of the pod is the helper's own");
  auto owned = check_owner(mntns, "mount namespace");
  if (!owned) return owned.error();
  if (::setns(mntns, CLONE_NEWNS) != 0) return Error::last("setns mount namespace");
  return ok();
}

Status Home::enter_network(int netns) {
  auto id = stat_fd(netns, "network namespace");
  if (!id) return id.error();
  if (same_inode(*id, net_id_)) return Error::refusal(EPERM, "network namespace of the pod is the helper's own");
  auto owned = check_owner(netns, "network namespace");
  if (!owned) return owned.error();
  if (::setns(netns, CLONE_NEWNET) != 0) return Error::last("setns network namespace");
  return ok();
}

Status Home::come_back() {
  if (is_here()) return ok();
  if (!is_in("ns/mnt", mnt_id_) && ::setns(mnt_.get(), CLONE_NEWNS) != 0) {
    return Error::last("setns home mount namespace");
  }
  if (!is_in("ns/net", net_id_) && ::setns(net_.get(), CLONE_NEWNET) != 0) {
    return Error::last("setns home network namespace");
  }
  if (!is_here()) return Error::of(EPERM, "return to home namespaces");
  return ok();
}

bool Home::is_here() const {
  return is_in("ns/mnt", mnt_id_) && is_in("ns/net", net_id_);
}

Status Home::check_owner(int ns, const std::string& what) const {
  Fd owner(::ioctl(ns, NS_GET_USERNS));
  if (!owner.valid()) return Error::last("NS_GET_USERNS " + what);
  auto owner_id = stat_fd(owner.get(), "user namespace");
  if (!owner_id) return owner_id.error();
  if (same_inode(*owner_id, user_id_)) return ok();
  return Error::refusal(EPERM, what + " of the pod belongs to another user namespace");
}

bool Home::is_in(const char* ns, const struct stat& expected) const {
  struct stat now {};
  return ::fstatat(task_.get(), ns, &now, 0) == 0 && same_inode(now, expected);
}

Result<std::string> Home::mountinfo() const { return read_proc_file(task_.get(), "mountinfo", kMaxMountinfo); }

}  // namespace privsep
