#include "privileges.h"

#include <grp.h>
#include <linux/capability.h>
#include <semaphore.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <string>

#include "capabilities.h"
#include "deadline.h"

namespace privsep {

namespace {

// The C library's own signal for changing credentials of all threads: no thread can block it through the C
// library. Node's inspector thread blocks all others.
constexpr int kEveryThreadSignal = 33;
constexpr int64_t kBroadcastMs = 10000;
constexpr size_t kMaxReports = 4096;

// What the signal handler needs. A handler has no argument of its own, hence the one static pointer.
struct Broadcast {
  const std::vector<sock_filter>* filter = nullptr;
  std::array<std::atomic<pid_t>, kMaxReports> confined{};
  std::atomic<size_t> count{0};
  std::atomic<int> error{0};
  sem_t reported{};
};
Broadcast* broadcast = nullptr;

// Only async-signal-safe calls from here on.
int confine_this_thread(const std::vector<sock_filter>& filter) {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct nothing[2]{};
  if (::syscall(SYS_capset, &header, nothing) != 0) return errno;
  return install_filter(filter);
}

void on_signal(int, siginfo_t* info, void*) {
  if (info->si_code != SI_TKILL || info->si_pid != ::getpid() || broadcast == nullptr) return;
  int saved = errno;
  int error = confine_this_thread(*broadcast->filter);
  if (error != 0) {
    broadcast->error = error;
  } else {
    size_t slot = broadcast->count.fetch_add(1);
    if (slot < kMaxReports) broadcast->confined[slot] = static_cast<pid_t>(::syscall(SYS_gettid));
  }
  ::sem_post(&broadcast->reported);
  errno = saved;
}

// As the kernel wants it. The C library neither shows nor changes the action of its own signals.
struct KernelAction {
  unsigned char bytes[64];
};

int kernel_sigaction(int signal, const KernelAction* action, KernelAction* old) {
  return static_cast<int>(::syscall(SYS_rt_sigaction, signal, action, old, 8));
}

// Takes over the signal and gives it back.
class SignalLease {
 public:
  Status take() {
    // A borrowed signal tells how the C library hands a handler to the kernel.
    const int borrowed = SIGRTMAX;
    struct sigaction before {};
    struct sigaction ours {};
    ours.sa_sigaction = on_signal;
    ours.sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK;
    ::sigfillset(&ours.sa_mask);
    if (::sigaction(borrowed, &ours, &before) != 0) return Error::last("sigaction");
    KernelAction handler{};
    int failed = kernel_sigaction(borrowed, nullptr, &handler);
    ::sigaction(borrowed, &before, nullptr);
    if (failed != 0 || kernel_sigaction(kEveryThreadSignal, &handler, &old_) != 0) return Error::last("rt_sigaction");
    taken_ = true;
    return ok();
  }
  ~SignalLease() {
    if (taken_) kernel_sigaction(kEveryThreadSignal, &old_, nullptr);
  }

 private:
  KernelAction old_{};
  bool taken_ = false;
};

bool contains(const std::vector<pid_t>& tids, pid_t tid) {
  return std::find(tids.begin(), tids.end(), tid) != tids.end();
}

bool is_confined(pid_t tid) {
  size_t count = std::min(broadcast->count.load(), kMaxReports);
  for (size_t i = 0; i < count; ++i) {
    if (broadcast->confined[i] == tid) return true;
  }
  return false;
}

// Threads that still have to be told.
Result<std::vector<pid_t>> missing(const std::vector<pid_t>& keepers) {
  auto tids = thread_ids();
  if (!tids) return tids.error();
  pid_t self = static_cast<pid_t>(::syscall(SYS_gettid));
  std::vector<pid_t> rest;
  for (pid_t tid : *tids) {
    if (tid != self && !contains(keepers, tid) && !is_confined(tid)) rest.push_back(tid);
  }
  return rest;
}

// Signals threads until a listing shows none that has not reported. Those made meanwhile by a confined
// thread are confined already and are told once more, which is harmless.
Status tell_every_thread(const std::vector<pid_t>& keepers) {
  Deadline deadline = Deadline::after_ms(kBroadcastMs);
  std::vector<pid_t> told;
  for (;;) {
    auto rest = missing(keepers);
    if (!rest) return rest.error();
    if (rest->empty()) return ok();
    if (broadcast->error != 0) return Error::of(broadcast->error, "confine a thread");
    if (deadline.passed() || broadcast->count >= kMaxReports) return Error::of(ETIMEDOUT, "confine every thread");
    for (pid_t tid : *rest) {
      if (contains(told, tid)) continue;
      if (::syscall(SYS_tgkill, ::getpid(), tid, kEveryThreadSignal) == 0) {
        told.push_back(tid);
      } else if (errno != ESRCH) {
        return Error::last("tgkill");
      }
    }
    // A thread may end without reporting, so the wait is short and the list is read again.
    timespec until{};
    ::clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += 20 * 1000 * 1000;
    if (until.tv_nsec >= 1000000000) {
      until.tv_nsec -= 1000000000;
      ++until.tv_sec;
    }
    while (::sem_timedwait(&broadcast->reported, &until) != 0 && errno == EINTR) {
    }
  }
}

Status check_ordinary(const std::vector<pid_t>& keepers, bool (*holds)(const ThreadStatus&, uid_t, gid_t), uid_t uid,
                      gid_t gid, const char* what) {
  auto tids = thread_ids();
  if (!tids) return tids.error();
  for (pid_t tid : *tids) {
    if (contains(keepers, tid)) continue;
    auto status = thread_status(tid);
    if (!status) return status.error();
    if (*status && !holds(**status, uid, gid)) {
      return Error::refusal(EPERM, std::string(what) + " of thread " + std::to_string(tid));
    }
  }
  return ok();
}

bool runs_as(const ThreadStatus& status, uid_t uid, gid_t gid) {
  auto all = [](const std::array<uint32_t, 4>& ids, uint32_t id) {
    return std::all_of(ids.begin(), ids.end(), [id](uint32_t other) { return other == id; });
  };
  return all(status.uids, uid) && all(status.gids, gid) && status.permitted == 0 && status.effective == 0 &&
         status.ambient == 0;
}

bool is_confined_status(const ThreadStatus& status, uid_t, gid_t) {
  return status.permitted == 0 && status.effective == 0 && status.inheritable == 0 && status.ambient == 0 &&
         status.no_new_privs && status.seccomp == 2;
}

}  // namespace

Status check_user(uid_t uid, gid_t gid, const std::vector<gid_t>& groups) {
  if (uid == 0 || gid == 0 || std::find(groups.begin(), groups.end(), 0U) != groups.end()) {
    return Error::refusal(EINVAL, "user and groups must not be root's");
  }
  return ok();
}

Status change_user(uid_t uid, gid_t gid, const std::vector<gid_t>& groups, const std::vector<pid_t>& keepers) {
  // The C library performs each of these in every thread.
  if (::setgroups(groups.size(), groups.data()) != 0) return Error::last("setgroups");
  if (::setresgid(gid, gid, gid) != 0) return Error::last("setresgid");
  if (::setresuid(uid, uid, uid) != 0) return Error::last("setresuid");
  return check_ordinary(keepers, runs_as, uid, gid, "privileges");
}

Status confine_threads(FilterProfile profile, const std::vector<pid_t>& keepers) {
  if (::prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0) return Error::last("prctl PR_SET_DUMPABLE");
  rlimit none{0, 0};
  if (::setrlimit(RLIMIT_CORE, &none) != 0) return Error::last("setrlimit RLIMIT_CORE");

  const std::vector<sock_filter> filter = build_filter(profile);
  static Broadcast state;
  state.filter = &filter;
  if (::sem_init(&state.reported, 0, 0) != 0) return Error::last("sem_init");
  SignalLease lease;
  auto taken = lease.take();
  if (!taken) return taken.error();
  broadcast = &state;
  auto told = tell_every_thread(keepers);
  broadcast = nullptr;
  if (!told) return told.error();
  if (int error = confine_this_thread(filter); error != 0) return Error::of(error, "confine the main thread");
  // Made by the last unconfined thread after the last listing: none, for that thread was this one.
  return check_ordinary(keepers, is_confined_status, 0, 0, "confinement");
}

}  // namespace privsep
