// Processes and threads as /proc shows them.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "deadline.h"
#include "launcher.h"
#include "pod.h"
#include "result.h"

namespace privsep {

// One process: the parts of proc_pid_stat(5) by which it is found and known again.
struct Process {
  pid_t pid = 0;
  pid_t ppid = 0;
  uint64_t start_ticks = 0;  // after boot
  bool kernel_thread = false;
  bool ended = false;  // and nobody has waited for it yet
  std::string comm;  // what it calls itself, which proves nothing
};

struct Thread {
  pid_t tid = 0;
  std::string comm;  // with the newline that the kernel puts behind it
};

// A launcher's process, its parent, and the living children of both in the order of their numbers.
struct LauncherProcesses {
  pid_t launcher = 0;
  pid_t monitor = 0;
  std::vector<Process> children;
};

// A process that is held, and was the one that was named when it was taken hold of.
struct HeldProcess {
  Fd pidfd;
  pid_t pid = 0;
};

inline constexpr size_t kMaxComm = 64;

// Nothing for text that is not that of proc_pid_stat(5).
std::optional<Process> parse_process_stat(std::string_view text);

Result<LauncherProcesses> launcher_processes(const Launcher& launcher, const Deadline& deadline);

// Threads of the kernel that are called so.
Result<std::vector<Process>> kernel_threads(const std::string& comm, const Deadline& deadline);

// Threads of a process of the pod.
Result<std::vector<Thread>> process_threads(const PodUid& pod, const Process& process);

// Refuses a process that is not the one that was found, or is not in the pod's cgroup.
Result<HeldProcess> hold_process(const PodUid& pod, const Process& process);
Result<HeldProcess> hold_kernel_thread(const Process& process);

// Whether the thread is one of the process, and is still called as it was.
Status check_thread(const HeldProcess& process, const Thread& thread);

}  // namespace privsep
