#include "processes.h"

#include <fcntl.h>

#include <algorithm>
#include <charconv>

#include "kernel.h"
#include "proc_file.h"
#include "walk.h"

namespace privsep {

namespace {

constexpr size_t kMaxProcesses = 262144;
constexpr size_t kMaxFound = 4096;
constexpr size_t kMaxThreads = 16384;
constexpr size_t kMaxStat = 4096;
constexpr pid_t kKthreadd = 2;
// proc_pid_stat(5), fields counted from that after the command.
constexpr size_t kState = 0;
constexpr size_t kParent = 1;
constexpr size_t kFlags = 6;
constexpr size_t kStart = 19;
// include/linux/sched.h; the same number since Linux 2.6.
constexpr uint64_t kKernelThread = 0x00200000;

template <typename T>
bool parse_number(std::string_view text, T* value) {
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc() && end == text.data() + text.size();
}

std::string stat_path(pid_t pid) { return "/proc/" + std::to_string(pid) + "/stat"; }

Result<Process> read_process(pid_t pid) {
  auto text = read_proc_file(stat_path(pid), kMaxStat);
  if (!text) return text.error();
  auto process = parse_process_stat(*text);
  if (!process) return Error::of(EBADMSG, "parse " + stat_path(pid));
  return *process;
}

bool has_ended(const Error& error) { return error.code == ENOENT || error.code == ESRCH; }

// Living processes that `wanted` takes, in the order of their numbers.
template <typename Wanted>
Result<std::vector<Process>> find_processes(const Deadline& deadline, Wanted wanted) {
  Fd proc(::open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!proc.valid()) return Error::last("open /proc");
  auto names = read_directory(proc.get(), kMaxProcesses, "/proc");
  if (!names) return names.error();
  std::vector<Process> found;
  for (const std::string& name : *names) {
    pid_t pid = 0;
    if (!parse_number(std::string_view(name), &pid)) continue;
    if (deadline.passed()) return Error::of(ETIMEDOUT, "look through /proc");
    auto process = read_process(pid);
    if (!process) {
      if (has_ended(process.error())) continue;
      return process.error();
    }
    if (process->ended || !wanted(*process)) continue;
    if (found.size() == kMaxFound) return Error::of(E2BIG, "look through /proc");
    found.push_back(std::move(*process));
  }
  std::sort(found.begin(), found.end(), [](const Process& a, const Process& b) { return a.pid < b.pid; });
  return found;
}

std::string name_of(const Process& process) { return "process " + std::to_string(process.pid); }

// The pidfd holds the number, so what is read by the number is about the process of the pidfd while that lives.
Result<HeldProcess> hold(const Process& process) {
  HeldProcess held;
  held.pid = process.pid;
  held.pidfd.reset(kernel::pidfd_open(process.pid));
  if (!held.pidfd.valid()) return Error::last("pidfd_open " + name_of(process));
  auto now = read_process(process.pid);
  auto alive = check_alive(held.pidfd.get(), name_of(process));
  if (!alive) return alive.error();
  if (!now) return now.error();
  bool same = now->start_ticks == process.start_ticks && now->ppid == process.ppid && now->comm == process.comm &&
              now->kernel_thread == process.kernel_thread;
  if (!same) return Error::refusal(ESRCH, name_of(process) + " is another one now");
  return held;
}

Result<std::string> read_comm(pid_t pid, pid_t tid) {
  return read_proc_file("/proc/" + std::to_string(pid) + "/task/" + std::to_string(tid) + "/comm", kMaxComm + 1);
}

}  // namespace

std::optional<Process> parse_process_stat(std::string_view text) {
  // The command may hold anything, parentheses and newlines too.
  size_t open = text.find(" (");
  size_t close = text.rfind(") ");
  if (open == text.npos || close == text.npos || close < open + 2) return std::nullopt;
  Process process;
  if (!parse_number(text.substr(0, open), &process.pid)) return std::nullopt;
  if (close - open - 2 > kMaxComm) return std::nullopt;
  process.comm = text.substr(open + 2, close - open - 2);
  std::string_view rest = text.substr(close + 2);
  uint64_t flags = 0;
  for (size_t field = 0; field <= kStart; ++field) {
    size_t end = rest.find(' ');
    if (end == rest.npos) return std::nullopt;
    std::string_view value = rest.substr(0, end);
    rest.remove_prefix(end + 1);
    if (field == kState) process.ended = value == "Z" || value == "X";
    if (field == kParent && !parse_number(value, &process.ppid)) return std::nullopt;
    if (field == kFlags && !parse_number(value, &flags)) return std::nullopt;
    if (field == kStart && !parse_number(value, &process.start_ticks)) return std::nullopt;
  }
  process.kernel_thread = (flags & kKernelThread) != 0;
  return process;
}

Result<LauncherProcesses> launcher_processes(const Launcher& launcher, const Deadline& deadline) {
  auto pid = pid_of(launcher.pidfd.get());
  if (!pid) return pid.error();
  auto self = read_process(*pid);
  if (!self) return self.error();
  LauncherProcesses processes;
  processes.launcher = *pid;
  processes.monitor = self->ppid;
  auto children = find_processes(
      deadline, [&](const Process& each) { return each.ppid == processes.launcher || each.ppid == processes.monitor; });
  if (!children) return children.error();
  processes.children = std::move(*children);
  // A number that was reused would have led to another family.
  auto alive = check_alive(launcher.pidfd.get(), "launcher");
  if (!alive) return alive.error();
  return processes;
}

Result<std::vector<Process>> kernel_threads(const std::string& comm, const Deadline& deadline) {
  return find_processes(deadline, [&](const Process& each) {
    return each.kernel_thread && each.ppid == kKthreadd && each.comm == comm;
  });
}

Result<std::vector<Thread>> process_threads(const PodUid& pod, const Process& process) {
  auto held = hold_process(pod, process);
  if (!held) return held.error();
  const std::string path = "/proc/" + std::to_string(held->pid) + "/task";
  Fd tasks(::open(path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!tasks.valid()) return Error::last("open " + path);
  auto names = read_directory(tasks.get(), kMaxThreads, path);
  if (!names) return names.error();
  std::vector<Thread> threads;
  for (const std::string& name : *names) {
    Thread thread;
    if (!parse_number(std::string_view(name), &thread.tid)) return Error::of(EBADMSG, "names in " + path);
    auto comm = read_comm(held->pid, thread.tid);
    if (!comm) {
      if (has_ended(comm.error())) continue;
      return comm.error();
    }
    thread.comm = std::move(*comm);
    threads.push_back(std::move(thread));
  }
  auto alive = check_alive(held->pidfd.get(), name_of(process));
  if (!alive) return alive.error();
  return threads;
}

Result<HeldProcess> hold_process(const PodUid& pod, const Process& process) {
  auto held = hold(process);
  if (!held) return held;
  auto member = check_process(held->pidfd.get(), pod, name_of(process));
  if (!member) return member.error();
  return held;
}

Result<HeldProcess> hold_kernel_thread(const Process& process) {
  if (!process.kernel_thread || process.ppid != kKthreadd) {
    return Error::refusal(EPERM, name_of(process) + " is no thread of the kernel");
  }
  return hold(process);
}

Status check_thread(const HeldProcess& process, const Thread& thread) {
  auto comm = read_comm(process.pid, thread.tid);
  auto alive = check_alive(process.pidfd.get(), "process " + std::to_string(process.pid));
  if (!alive) return alive.error();
  if (!comm && has_ended(comm.error())) {
    return Error::of(ESRCH, "thread " + std::to_string(thread.tid) + " of process " + std::to_string(process.pid));
  }
  if (!comm) return comm.error();
  if (*comm != thread.comm) {
    return Error::refusal(ESRCH, "thread " + std::to_string(thread.tid) + " is another one now");
  }
  return ok();
}

}  // namespace privsep
