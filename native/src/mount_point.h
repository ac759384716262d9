// Mounts on single names of a directory.
#pragma once

#include <sys/stat.h>

#include <mutex>
#include <optional>
#include <string>

#include "fd.h"
#include "pod.h"
#include "result.h"

namespace privsep {

// One lock for all: looking for a mount and attaching one must not be interleaved with another thread's,
// for a second mount would silently cover the first.
using MountLock = std::mutex;

// Root of the mount namespace in which the calling thread is.
Result<Fd> open_root();

// A volume of the pod as the calling thread's namespace, the launcher's, shows it; refused unless it is the one with
// that identity.
Result<Fd> open_in_launcher(PodVolume volume, const struct stat& id);

// The same; nothing when its place is gone: kubelet removes a pod's directories when the pod has ended, however long its
// processes take, and a mount goes with the directory that it is on (unlink in mount_namespaces(7)).
Result<std::optional<Fd>> find_in_launcher(PodVolume volume, const struct stat& id);

Result<bool> is_mount_root(int fd, const std::string& what);

// Moves the detached `tree`, which shows the regular file or directory `source`, onto the entry `name` of the same type,
// which is made with `mode` if it is missing. Call it with the lock held and in the namespace of `directory`. False when
// mounted already; refused when something else is.
Result<bool> attach_mount(int tree, int directory, const std::string& name, const struct stat& source, mode_t mode);

// Takes every mount off the entry. True when there was one. The thread's working directory becomes `directory`.
Result<bool> unmount_entry(int directory, const std::string& name);

}  // namespace privsep
