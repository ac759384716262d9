// Which pod a process belongs to, by its cgroup.
#pragma once

#include <string_view>

namespace privsep {

// True when a /proc/<pid>/cgroup text places the process in the pod: on at least one line (v1 hierarchy or
// v2), the outermost pod component of the path is that of the pod, and no line has that of another pod.
// Only the outermost counts: below its own cgroup a container may be able to make any name.
// Components: "pod<uid>" (cgroupfs driver), "...-pod<uid with underscores>.slice" (systemd driver).
bool cgroup_is_in_pod(std::string_view cgroup_file, std::string_view pod_uid);

}  // namespace privsep
