// Volumes that are plugged into a launcher pod after its start, in the launcher's view of the pod's hotplug-disks.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>
#include <vector>

#include "deadline.h"
#include "launcher.h"
#include "mount_point.h"
#include "namespaces.h"
#include "pod.h"

namespace privsep {

// kDisk: "<volume>.img" shows disk.img of the volume. kDirectory: "<volume>" shows the volume itself.
enum class PlugKind { kDisk, kDirectory };

// The owner of what is plugged.
struct PlugOwner {
  uid_t uid = 0;
  gid_t gid = 0;
};

// A volume's name is a DNS label.
Status check_volume_name(std::string_view name);

// "<volume>.img" or "<volume>".
Status check_plug_name(std::string_view name);

// An entry of hotplug-disks with the name of a volume.
struct PluggedEntry {
  std::string name;
  bool mounted = false;  // something is mounted on it
  bool block = false;    // it is a block device
};

// What is plugged, or was once. Without `launcher` as the host sees it.
Result<std::vector<PluggedEntry>> list_plugged(Home& home, int pods_dir, const PodUid& pod, const Launcher* launcher);

enum class Owned { kAbsent, kUnchanged, kChanged, kKept };

// Gives what is mounted for the volume, by whomever, to the owner. kAbsent: nothing is. kKept: see Given.
Result<Owned> own_plugged(Home& home, int pods_dir, const PodUid& pod, const Launcher& launcher,
                          const std::string& volume, PlugKind kind, const PlugOwner& owner);

enum class PlugOutcome { kPlugged, kPluggedKept, kNotReady, kMissing };

// Mounts the volume that the attachment pod has at /<volume>, nosuid, nodev, noexec, nosymfollow, and gives it to the
// owner. /<volume> must be a mount of its own there and of no kernel file system; disk.img must be a regular file on
// the same mount. kNotReady: nobody listens in the attachment pod, or there is no /<volume>. kMissing: no disk.img.
// kPluggedKept: plugged, but what it is keeps its owner, see Given.
Result<PlugOutcome> plug_filesystem(Home& home, int pods_dir, const PodUid& pod, const Launcher& launcher,
                                    const PodUid& attachment, const std::string& volume, PlugKind kind,
                                    const PlugOwner& owner, const Deadline& deadline);

// Takes every mount off the entry, in the launcher and on the host, and then the entry away. A directory in which the
// launcher keeps something stays. Without `launcher` its mounts have gone with it. True when something was there.
Result<bool> unplug(Home& home, int pods_dir, const PodUid& pod, const Launcher* launcher, const std::string& name);

}  // namespace privsep
