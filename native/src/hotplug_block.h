// Block devices that are plugged into a launcher pod after its start, as nodes in the pod's hotplug-disks.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "deadline.h"
#include "device_cgroup.h"
#include "device_program.h"
#include "hotplug.h"
#include "pod.h"

namespace privsep {

struct BlockDevice {
  dev_t device = 0;
  mode_t mode = 0;  // permission bits
};

// The node of a volume in the launcher pod; nothing when there is none. Refused: what is no block device.
Result<std::optional<BlockDevice>> plugged_device(int pods_dir, const PodUid& pod, const std::string& volume);

// What an attachment pod offers for a volume, and what decides whether its process may open it: the device list
// (cgroup v1), or all of the programs (v2). A pod may make any node; what it may open it was given.
struct AttachedDevice {
  PlugOutcome outcome = PlugOutcome::kNotReady;
  BlockDevice node;
  std::string list;
  std::vector<AttachedProgram> programs;
};

// The only node in hotplug-disks/<volume> of an attachment pod, in which somebody must listen. Refused: what is no
// block device, and more than one entry. kMissing: there is no such directory. ENODEV: it is empty.
Result<AttachedDevice> attached_device(const DeviceHierarchy& hierarchy, int pods_dir, const PodUid& attachment,
                                       const std::string& volume, const Deadline& deadline);

// Makes the node unless it is there, and gives it to the owner. False when nothing was to be done. Refused: a file
// system that lets nobody open device nodes, and something else in the place of the node.
Result<bool> plug_block(int pods_dir, const PodUid& pod, const std::string& volume, const BlockDevice& node,
                        const PlugOwner& owner);

}  // namespace privsep
