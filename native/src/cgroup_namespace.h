// The cgroup namespace in which the helper reads where processes are.
#pragma once

#include <string>

#include "result.h"

namespace privsep {

// Moves the calling thread, and those that it starts later, into a cgroup namespace, unless it is there. A container
// has one of its own, in which the cgroups of other pods have no path.
Status join_cgroup_namespace(const std::string& path);

}  // namespace privsep
