// The cgroup of a launcher in the hierarchy that decides about devices.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "fd.h"
#include "pod.h"
#include "result.h"

namespace privsep {

// v1: the hierarchy of the controller `devices`; v2: the unified one, with programs.
enum class CgroupVersion { kV1, kV2 };

// Where the hierarchy is mounted (O_PATH).
struct DeviceHierarchy {
  Fd root;
  CgroupVersion version = CgroupVersion::kV2;
};

// Paths below the root of the hierarchy, of a process in the pod with this text of /proc/<pid>/cgroup: its container's
// cgroup, and on v2 the one above it that crun makes (`<id>.scope/container`), where the runtime's program is. The
// child `housekeeping`, into which the agent puts threads, is left out. Refuses a path that is not the pod's or leads
// out of the reader's cgroup namespace.
Result<std::vector<std::string>> device_cgroup_paths(std::string_view cgroup_file, CgroupVersion version,
                                                     std::string_view pod_uid);

// Those directories of the process of the pidfd (O_PATH), which lives and is in the pod once they are open.
Result<std::vector<Fd>> open_device_cgroups(const DeviceHierarchy& hierarchy, int pidfd, const PodUid& pod,
                                            const std::string& what);

}  // namespace privsep
