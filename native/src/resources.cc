#include "resources.h"

#include <sched.h>
#include <sys/resource.h>

#include "cpu_list.h"

namespace privsep {

namespace {

constexpr int kVcpuPriority = 1;
constexpr int kPitPriority = 2;

struct CpuMask {
  // cpu_set_t's own bits; the kernel fills in as many bytes as it has CPUs for.
  unsigned long bits[kMaxCpus / (8 * sizeof(unsigned long))] = {};
  cpu_set_t* set() { return reinterpret_cast<cpu_set_t*>(bits); }
};

std::string thread_name(pid_t tid) { return "thread " + std::to_string(tid); }

// False when the thread had the policy and the priority already.
Result<bool> make_fifo(pid_t tid, int priority) {
  int policy = ::sched_getscheduler(tid);
  if (policy < 0) return Error::last("sched_getscheduler " + thread_name(tid));
  sched_param param{};
  if (::sched_getparam(tid, &param) != 0) return Error::last("sched_getparam " + thread_name(tid));
  if (policy == SCHED_FIFO && param.sched_priority == priority) return false;
  param.sched_priority = priority;
  if (::sched_setscheduler(tid, SCHED_FIFO, &param) != 0) {
    return Error::last("sched_setscheduler " + thread_name(tid));
  }
  return true;
}

Status read_affinity(pid_t tid, CpuMask* mask) {
  if (::sched_getaffinity(tid, sizeof mask->bits, mask->set()) != 0) {
    return Error::last("sched_getaffinity " + thread_name(tid));
  }
  return ok();
}

Error after_change(Error error, bool changed) {
  error.unchanged = error.unchanged && !changed;
  return error;
}

}  // namespace

Result<bool> lift_memlock(const PodUid& pod, const Process& process) {
  auto held = hold_process(pod, process);
  if (!held) return held.error();
  const std::string what = "prlimit RLIMIT_MEMLOCK of process " + std::to_string(held->pid);
  rlimit now{};
  if (::prlimit(held->pid, RLIMIT_MEMLOCK, nullptr, &now) != 0) return Error::last(what);
  bool lifted = now.rlim_cur == RLIM_INFINITY && now.rlim_max == RLIM_INFINITY;
  const rlimit none{RLIM_INFINITY, RLIM_INFINITY};
  if (!lifted && ::prlimit(held->pid, RLIMIT_MEMLOCK, &none, nullptr) != 0) return Error::last(what);
  // Still alive: so the number meant this process.
  auto alive = check_alive(held->pidfd.get(), "process " + std::to_string(held->pid));
  if (!alive) return after_change(alive.error(), !lifted);
  return !lifted;
}

Result<bool> schedule_threads(const PodUid& pod, const Process& process, const std::vector<Thread>& threads) {
  auto held = hold_process(pod, process);
  if (!held) return held.error();
  bool changed = false;
  for (const Thread& thread : threads) {
    auto before = check_thread(*held, thread);
    if (!before) return after_change(before.error(), changed);
    auto made = make_fifo(thread.tid, kVcpuPriority);
    if (!made) return after_change(made.error(), changed);
    changed = changed || *made;
    // Still one of the process: so the number meant this thread.
    auto after = check_thread(*held, thread);
    if (!after) return after_change(after.error(), changed);
  }
  return changed;
}

Result<bool> affine_kernel_thread(const PodUid& pod, const Process& process, const Thread& like,
                                  const Process& kernel_thread, bool realtime) {
  auto held = hold_process(pod, process);
  if (!held) return held.error();
  auto pit = hold_kernel_thread(kernel_thread);
  if (!pit) return pit.error();
  CpuMask wanted;
  auto read = read_affinity(like.tid, &wanted);
  if (!read) return read.error();
  auto same = check_thread(*held, like);
  if (!same) return same.error();
  bool changed = false;
  if (realtime) {
    auto made = make_fifo(pit->pid, kPitPriority);
    if (!made) return made.error();
    changed = *made;
  }
  CpuMask now;
  read = read_affinity(pit->pid, &now);
  if (!read) return after_change(read.error(), changed);
  if (!CPU_EQUAL_S(sizeof now.bits, wanted.set(), now.set())) {
    if (::sched_setaffinity(pit->pid, sizeof wanted.bits, wanted.set()) != 0) {
      return after_change(Error::last("sched_setaffinity " + thread_name(pit->pid)), changed);
    }
    changed = true;
  }
  auto alive = check_alive(pit->pidfd.get(), thread_name(pit->pid));
  if (!alive) return after_change(alive.error(), changed);
  return changed;
}

}  // namespace privsep
