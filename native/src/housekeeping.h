// The cgroup that keeps a VM's emulator threads off the CPUs of its vCPUs.
#pragma once

#include <cstdint>

#include "cpu_list.h"
#include "deadline.h"
#include "launcher.h"
#include "pod.h"
#include "result.h"

namespace privsep {

struct Isolation {
  bool changed = false;
  uint32_t moved = 0;  // threads
};

// Makes the child kHousekeeping of the launcher's cgroup and, if `cpus` are given, confines to them every thread of that
// cgroup that is no vCPU by its name. `cgroup_root` is where cgroups are mounted; `user` is the launcher's. Refuses CPUs
// that the launcher's cgroup does not have. May be repeated at any time.
Result<Isolation> isolate_emulator(int cgroup_root, const PodUid& pod, const Launcher& launcher, uid_t user,
                                   const CpuList& cpus, const Deadline& deadline);

// The same for a cgroup that was found.
Result<Isolation> isolate_threads(int cgroup, bool unified, uid_t user, const CpuList& cpus, const Deadline& deadline);

}  // namespace privsep
