// Mounts on single names of a directory.
#pragma once

#include <sys/stat.h>

#include <optional>
#include <string>

#include "fd.h"
#include "pod.h"
#include "result.h"

namespace privsep {

// Root of the mount namespace in which the calling thread is.
Result<Fd> open_root();

// A volume of the pod as the calling thread's namespace, the launcher's, shows it; refused unless it is the one with
// that identity.
Result<Fd> open_in_launcher(PodVolume volume, const struct stat& id);

// The same; nothing when its place is gone: kubelet removes a pod's directories when the pod has ended, however long its
// processes take, and a mount goes with the directory that it is on (unlink in mount_namespaces(7)).
Result<std::optional<Fd>> find_in_launcher(PodVolume volume, const struct stat& id);

// What can be told of an entry (O_PATH) without its file system, whose server may not answer.
struct Entry {
  bool mounted = false;  // it is the root of a mount
  mode_t type = 0;       // S_IFMT
};
Result<Entry> look_at(int entry, const std::string& what);

// Moves the detached `tree`, which shows the regular file or directory `source`, onto the entry `name` of the same type,
// which is made with `mode` if it is missing. Call it in the namespace of `directory`, and for one pod at a time only:
// between looking for a mount and attaching one another call would be covered by it. False when mounted already; refused
// when something else is.
Result<bool> attach_mount(int tree, int directory, const std::string& name, const struct stat& source, mode_t mode);

// Takes every mount off the entry, whether what is mounted answers or not. True when there was one. The thread's working
// directory becomes `directory`.
Result<bool> unmount_entry(int directory, const std::string& name);

}  // namespace privsep
