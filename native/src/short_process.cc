#include "short_process.h"

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fd.h"

namespace privsep {

namespace {

// An own entry in the C library's numbers for what not every version has a function for.
long make_process(int* pidfd) { return ::syscall(SYS_clone, kProcessFlags, nullptr, pidfd, nullptr, nullptr); }

// Nobody waits for it then. A parent that ended before the request is not told of by a signal.
bool end_with_parent(pid_t parent) {
  return ::syscall(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) == 0 && ::syscall(SYS_getppid) == parent;
}

// Whether it ended by itself.
bool await_end(int pidfd, const Deadline& deadline) {
  for (;;) {
    pollfd p{pidfd, POLLIN, 0};
    int n = ::poll(&p, 1, deadline.remaining_ms());
    if (n > 0) return true;
    if (n == 0 || errno != EINTR) return false;
  }
}

}  // namespace

Result<int> run_short_process(int (*work)(void*), void* argument, const Deadline& deadline) {
  const pid_t parent = ::getpid();
  int number = -1;
  long child = make_process(&number);
  if (child == 0) {
    int code = end_with_parent(parent) ? work(argument) : 127;
    for (;;) ::syscall(SYS_exit_group, code);
  }
  if (child < 0) return Error::last("clone");
  Fd pidfd(number);
  bool ended = await_end(pidfd.get(), deadline);
  if (!ended && ::syscall(SYS_pidfd_send_signal, pidfd.get(), SIGKILL, nullptr, 0) != 0 && errno != ESRCH) {
    return Error::last("pidfd_send_signal");
  }
  // A killed process leaves the kernel as soon as a thread of this process in its place would.
  siginfo_t info{};
  int waited = 0;
  do {
    waited = ::waitid(static_cast<idtype_t>(P_PIDFD), static_cast<id_t>(pidfd.get()), &info, WEXITED | __WALL);
  } while (waited != 0 && errno == EINTR);
  if (waited != 0) return Error::last("waitid");
  if (info.si_code == CLD_EXITED) return info.si_status;
  return ended ? Error::of(ECANCELED, "process ended by signal " + std::to_string(info.si_status))
               : Error::of(ETIMEDOUT, "process");
}

}  // namespace privsep
