// Limits and scheduling of the processes of a launcher pod.
#pragma once

#include <vector>

#include "pod.h"
#include "processes.h"
#include "result.h"

namespace privsep {

// Makes RLIMIT_MEMLOCK of a process of the pod unlimited, soft and hard. False when it was already.
Result<bool> lift_memlock(const PodUid& pod, const Process& process);

// SCHED_FIFO, priority 1, for threads of a process of the pod. False when all of them had it already.
Result<bool> schedule_threads(const PodUid& pod, const Process& process, const std::vector<Thread>& threads);

// Binds a thread of the kernel to the CPUs of a thread of a process of the pod, and gives it SCHED_FIFO, priority 2, if
// `realtime`. False when all of it was so already.
Result<bool> affine_kernel_thread(const PodUid& pod, const Process& process, const Thread& like,
                                  const Process& kernel_thread, bool realtime);

}  // namespace privsep
