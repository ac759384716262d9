// Device programs of cgroup v2: which devices its processes may open and make (bpf(2), BPF_PROG_TYPE_CGROUP_DEVICE).
#pragma once

#include <linux/bpf.h>

#include <string>
#include <vector>

#include "fd.h"
#include "result.h"

namespace privsep {

// Attached programs are looked up, loaded and replaced through these commands; the filter of system calls lets the
// privileged threads use no others.
inline constexpr int kDeviceProgramCommands[] = {BPF_PROG_LOAD,         BPF_PROG_ATTACH,        BPF_PROG_DETACH,
                                                 BPF_PROG_GET_FD_BY_ID, BPF_OBJ_GET_INFO_BY_FD, BPF_PROG_QUERY};

inline constexpr size_t kMaxProgramBytes = 1 << 20;

// Makes the program the only one of each cgroup. False when it was already. Where one program was attached it is
// replaced in one step; where there were several, each denies what it does not allow until the last of them is gone.
// So at no time is anything denied that both the old ones and the new one allow, or allowed that all of them deny.
// When it cannot be loaded, nothing is different.
Result<bool> replace_device_programs(const std::vector<Fd>& cgroups, const std::string& instructions);

struct AttachedProgram {
  uint32_t id = 0;
  std::string instructions;  // as the kernel verified them
};

// What is attached to the cgroup itself.
Result<std::vector<AttachedProgram>> attached_device_programs(int cgroup);

// Those of the cgroup and of the ones above it. What all of them allow is allowed.
Result<std::vector<AttachedProgram>> effective_device_programs(int cgroup);

}  // namespace privsep
