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

  // Root and working directory become those of the namespace. Refuses the own one, and one that a process made in
  // a user namespace of its own: its file systems may be served by that process and never answer.
  Status enter_mount(int mntns);
  // The same: in one of its own user namespace a process may add whatever it likes, without end.
  Status enter_network(int netns);

  // Back in both namespaces, verified. Does nothing when already there.
  Status come_back();

  // The kernel's word, not the memory of what was entered.
  bool is_here() const;

  // Text of proc_pid_mountinfo(5) for the namespace in which the thread is now, seen from its root.
  Result<std::string> mountinfo() const;

 private:
  Home() = default;
  // Of the same user namespace as the helper's.
  Status check_owner(int ns, const std::string& what) const;
  bool is_in(const char* ns, const struct stat& expected) const;

  // /proc/thread-self of the own procfs: in another mount namespace no path leads to it.
  Fd task_;
  Fd mnt_;
  Fd net_;
  struct stat mnt_id_ {};
  struct stat net_id_ {};
  struct stat user_id_ {};
};

// Whatever happens, the thread is home again when this goes.
class Journey {
 public:
  explicit Journey(Home& home) : home_(home) {}
  ~Journey() { (void)home_.come_back(); }  // the pool checks again and gives the thread up
  Journey(const Journey&) = delete;
  Journey& operator=(const Journey&) = delete;
  Status end() { return home_.come_back(); }

 private:
  Home& home_;
};

}  // namespace privsep
