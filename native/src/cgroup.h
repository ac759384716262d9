// Which pod a process belongs to, by its cgroup.
#pragma once

#include <string>
#include <string_view>

#include "result.h"

namespace privsep {

// True when a /proc/<pid>/cgroup text places the process in the pod: on at least one line (v1 hierarchy or
// v2), the outermost pod component of the path is that of the pod, and no line has that of another pod.
// Only the outermost counts: below its own cgroup a container may be able to make any name.
// Components: "pod<uid>" (cgroupfs driver), "...-pod<uid with underscores>.slice" (systemd driver).
bool cgroup_is_in_pod(std::string_view cgroup_file, std::string_view pod_uid);

// Child of a container's cgroup for threads of the launcher that must not run on the CPUs of vCPUs.
inline constexpr const char* kHousekeeping = "housekeeping";

// Whether a /proc/<pid>/cgroup text has a v1 hierarchy with the controller.
bool has_hierarchy(std::string_view cgroup_file, std::string_view controller);

// The container's cgroup that a /proc/<pid>/cgroup text names in the v1 hierarchy of a controller, or in that of v2 if
// the controller is empty: a path below the root of the hierarchy. kHousekeeping at its end is left out: that is the
// container's own child. Refuses a path that is not the pod's, and one that leads out of the reader's cgroup namespace.
Result<std::string> container_cgroup(std::string_view cgroup_file, std::string_view controller,
                                     std::string_view pod_uid);

}  // namespace privsep
