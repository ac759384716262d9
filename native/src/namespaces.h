// Entering namespaces of a pod from a privileged thread, and coming back.
#pragma once

#include <sys/stat.h>

#include <string>

#include "fd.h"
#include "result.h"

namespace privsep {

// The namespaces in which a privileged thread was started. One for each thread, used by it alone: the
// thread must not share its root and working directory (CLONE_FS), else the kernel refuses setns.
class Home {
 public:
  // Notes where the calling thread is.
  static Result<Home> here();

  // Root and working directory become those of the namespace. Refuses the own one.
  Status enter_mount(int mntns);
  Status enter_network(int netns);

  // Back in both namespaces, verified. Does nothing when already there.
  Status come_back();

  // The kernel's word, not the memory of what was entered.
  bool is_here() const;

  // Text of proc_pid_mountinfo(5) for the namespace in which the thread is now, seen from its root.
  Result<std::string> mountinfo() const;

  // True when `mntns` is a descriptor of the home mount namespace.
  Result<bool> is_own_mount(int mntns) const;

 private:
  Home(Fd task, Fd mnt, Fd net, struct stat mnt_id, struct stat net_id)
      : task_(std::move(task)), mnt_(std::move(mnt)), net_(std::move(net)), mnt_id_(mnt_id), net_id_(net_id) {}
  bool is_in(const char* ns, const struct stat& expected) const;

  // /proc/thread-self of the own procfs: in another mount namespace no path leads to it.
  Fd task_;
  Fd mnt_;
  Fd net_;
  struct stat mnt_id_;
  struct stat net_id_;
};

}  // namespace privsep
