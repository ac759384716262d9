// The thread pool and the filters, each in a child process of its own. Needs root.
#include <fcntl.h>
#include <linux/capability.h>
#include <poll.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <atomic>
#include <chrono>
#include <future>
#include <thread>

#include "../src/capabilities.h"
#include "../src/privileged_pool.h"
#include "../src/seccomp.h"
#include "check.h"
#include "fixture.h"

using namespace privsep;
using namespace privsep::test;

static constexpr auto kWait = std::chrono::seconds(10);
static constexpr uint64_t bit(int capability) { return uint64_t{1} << capability; }
static constexpr uint64_t kMask = bit(CAP_SYS_ADMIN) | bit(CAP_SYS_CHROOT) | bit(CAP_DAC_READ_SEARCH);

// Runs on a privileged thread. Gives 0, or the errno with which the job failed.
static int run(PrivilegedPool& pool, uint64_t caps, int64_t deadline_ms, std::function<void(Home&)> body) {
  auto done = std::make_shared<std::promise<int>>();
  auto future = done->get_future();
  PrivilegedPool::Job job{caps, Deadline::after_ms(deadline_ms), nullptr, nullptr};
  job.run = [body, done](Home& home, const Deadline&) -> PrivilegedPool::Completion {
    body(home);
    return [done] { done->set_value(0); };
  };
  job.fail = [done](const Error& error) { done->set_value(error.code); };
  auto submitted = pool.submit(std::move(job));
  if (!submitted) return submitted.error().code;
  return future.wait_for(kWait) == std::future_status::ready ? future.get() : ETIME;
}

TEST(capabilities_are_raised_for_the_call_only) {
  CHECK(in_child([] {
    auto pool = PrivilegedPool::start(2, kMask);
    if (!pool) return false;
    Capabilities during;
    bool good = run(**pool, bit(CAP_SYS_ADMIN), 5000, [&](Home&) { during = *current_capabilities(); }) == 0;
    good = good && during.effective == bit(CAP_SYS_ADMIN) && during.inheritable == 0;
    good = good && run(**pool, 0, 5000, [&](Home&) { during = *current_capabilities(); }) == 0 && during.effective == 0;
    good = good && run(**pool, bit(CAP_SYS_BOOT), 5000, [](Home&) {}) == EPERM;
    return good && run(**pool, ~uint64_t{0}, 5000, [](Home&) {}) == EPERM;
  }));
}

TEST(what_a_call_worked_on_is_let_go_before_its_outcome_is_told) {
  CHECK(in_child([] {
    auto pool = PrivilegedPool::start(1, kMask);
    if (!pool) return false;
    auto descriptor = std::make_shared<int>(1);
    std::weak_ptr<int> held = descriptor;
    auto told = std::make_shared<std::promise<bool>>();
    auto open = told->get_future();
    PrivilegedPool::Job job{0, Deadline::after_ms(5000), nullptr, nullptr};
    job.run = [descriptor, held, told](Home&, const Deadline&) -> PrivilegedPool::Completion {
      return [held, told] { told->set_value(!held.expired()); };
    };
    job.fail = [told](const Error&) { told->set_value(true); };
    descriptor.reset();
    if (!(*pool)->submit(std::move(job))) return false;
    return open.wait_for(kWait) == std::future_status::ready && !open.get();
  }));
}

TEST(dropping_the_user_leaves_only_the_pool_privileged) {
  CHECK(in_child([] {
    auto pool = PrivilegedPool::start(2, kMask);
    if (!pool || (*pool)->drop_user(0, 1000, {})) return false;
    if (!(*pool)->drop_user(64100, 64100, {64101})) return false;
    auto own = current_capabilities();
    bool good = own->permitted == 0 && ::geteuid() == 64100;
    Capabilities inside;
    uid_t uid = 0;
    good = good && run(**pool, 0, 5000, [&](Home&) {
                     inside = *current_capabilities();
                     uid = ::geteuid();
                   }) == 0;
    return good && inside.permitted == kMask && inside.effective == 0 && uid == 64100;
  }));
}

TEST(locked_down_process_can_still_work) {
  CHECK(in_child([] {
    auto pool = PrivilegedPool::start(2, kMask);
    if (!pool || !(*pool)->drop_user(64100, 64100, {}) || !(*pool)->lock_down(FilterProfile::kPrivileged)) return false;
    auto tids = thread_ids();
    for (pid_t tid : *tids) {
      auto status = thread_status(tid);
      if (!*status || !(*status)->no_new_privs || (*status)->seccomp != 2 || (*status)->effective != 0) return false;
    }
    bool good = ::unshare(CLONE_FS) == -1 && errno == EPERM;
    good = good && ::socket(AF_INET, SOCK_STREAM, 0) == -1 && errno == EPERM;
    good = good && ::socket(AF_VSOCK, SOCK_STREAM, 0) == -1 && errno == EPERM;
    good = good && ::fork() == -1 && errno == EPERM;
    good = good && run(**pool, kMask, 5000, [&](Home&) {
                     good = good && ::mount("none", "/tmp", "tmpfs", 0, nullptr) == -1 && errno == EPERM;
                     good = good && ::unshare(CLONE_NEWNET) == -1 && errno == EPERM;
                     good = good && ::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) == -1 && errno == EPERM;
                     // A kernel may not have the family.
                     good = good && (Fd(::socket(AF_VSOCK, SOCK_STREAM, 0)).valid() || errno == EAFNOSUPPORT);
                     good = good && Fd(::open("/root", O_RDONLY | O_DIRECTORY)).valid();
                   }) == 0;
    return good && Fd(::open("/root", O_RDONLY | O_DIRECTORY)).valid() == false;
  }));
}

TEST(a_thread_that_cannot_come_home_is_replaced) {
  CHECK(in_child([] {
    auto pool = PrivilegedPool::start(1, kMask);
    if (!pool || !(*pool)->drop_user(64100, 64100, {})) return false;
    struct stat home {};
    if (::stat("/proc/self/ns/net", &home) != 0) return false;
    for (int round = 0; round < 3; ++round) {
      // Without privileges in effect the way back is closed.
      bool left = false;
      if (run(**pool, kMask, 5000, [&](Home& here) {
            left = ::unshare(CLONE_NEWNET) == 0 && !here.is_here() && set_capabilities({kMask, 0, 0});
          }) != 0 || !left) {
        return false;
      }
      struct stat now {};
      Capabilities inside;
      if (run(**pool, bit(CAP_SYS_ADMIN), 5000, [&](Home& here) {
            ::stat("/proc/thread-self/ns/net", &now);
            inside = *current_capabilities();
            if (!here.is_here()) now.st_ino = 0;
          }) != 0) {
        return false;
      }
      if (now.st_ino != home.st_ino || inside.permitted != kMask) return false;
    }
    return true;
  }));
}

TEST(a_thread_that_forgot_to_come_home_is_brought_back) {
  CHECK(in_child([] {
    auto pool = PrivilegedPool::start(1, kMask);
    if (!pool) return false;
    if (run(**pool, kMask, 5000, [](Home&) { (void)!::unshare(CLONE_NEWNET | CLONE_NEWNS); }) != 0) return false;
    bool here = false;
    return run(**pool, kMask, 5000, [&](Home& home) { here = home.is_here(); }) == 0 && here;
  }));
}

TEST(calls_that_nobody_starts_in_time_fail) {
  CHECK(in_child([] {
    auto pool = PrivilegedPool::start(1, kMask);
    if (!pool) return false;
    std::promise<void> release;
    auto released = release.get_future().share();
    std::promise<void> started;
    PrivilegedPool::Job blocker{0, Deadline::after_ms(60000), nullptr, nullptr};
    blocker.run = [&](Home&, const Deadline&) -> PrivilegedPool::Completion {
      started.set_value();
      released.wait();
      return [] {};
    };
    blocker.fail = [](const Error&) {};
    if (!(*pool)->submit(std::move(blocker))) return false;
    started.get_future().wait();
    bool ran = false;
    bool good = run(**pool, 0, 50, [&](Home&) { ran = true; }) == ETIMEDOUT && !ran;
    std::atomic<int> failures{0};
    size_t accepted = 0;
    for (; accepted < PrivilegedPool::kMaxQueue + 1; ++accepted) {
      PrivilegedPool::Job job{0, Deadline::after_ms(60000), nullptr, nullptr};
      job.run = [](Home&, const Deadline&) -> PrivilegedPool::Completion { return [] {}; };
      job.fail = [&](const Error& error) { failures += error.code == ECANCELED ? 1 : 0; };
      auto submitted = (*pool)->submit(std::move(job));
      if (!submitted) {
        good = good && submitted.error().code == EAGAIN;
        break;
      }
    }
    good = good && accepted == PrivilegedPool::kMaxQueue;
    std::thread ender([&] { pool->reset(); });
    while (failures < static_cast<int>(accepted)) ::sched_yield();
    release.set_value();
    ender.join();
    return good;
  }));
}

TEST(filters_fit_the_kernel) {
  for (FilterProfile profile : {FilterProfile::kPrivileged, FilterProfile::kHelper, FilterProfile::kAgent}) {
    auto filter = build_filter(profile);
    CHECK(filter.size() < BPF_MAXINSNS);
    CHECK(in_child([&] { return install_filter(filter) == 0 && ::getpid() > 0; }));
  }
  CHECK(in_child([] {
    return install_filter(build_filter(FilterProfile::kAgent)) == 0 && Fd(::socket(AF_INET, SOCK_STREAM, 0)).valid() &&
           ::fork() == -1 && errno == EPERM;
  }));
}

TEST(long_jobs_have_threads_of_their_own_and_end_with_the_pool) {
  CHECK(in_child([] {
    auto pool = PrivilegedPool::start(1, kMask);
    if (!pool || !(*pool)->drop_user(64100, 64100, {}) || !(*pool)->lock_down(FilterProfile::kPrivileged)) return false;
    const int stopping = (*pool)->stopping_fd();
    // Each kind has its own: what waits for a process does not keep a volume from being taken away.
    constexpr PrivilegedPool::Lone kKinds[] = {PrivilegedPool::Lone::kProcess, PrivilegedPool::Lone::kVolume,
                                               PrivilegedPool::Lone::kUnplug};
    constexpr int kJobs = static_cast<int>(PrivilegedPool::kMaxAlone * std::size(kKinds));
    std::atomic<int> begun{0};
    std::promise<void> all_begun;
    std::atomic<int> ended{0};
    auto wait_for_stop = [&](PrivilegedPool& target, PrivilegedPool::Lone kind) {
      PrivilegedPool::Job job{bit(CAP_SYS_ADMIN), Deadline::after_ms(60000), nullptr, nullptr};
      job.run = [&, stopping](Home&, const Deadline&) -> PrivilegedPool::Completion {
        if (++begun == kJobs) all_begun.set_value();
        pollfd p{stopping, POLLIN, 0};
        bool good = current_capabilities()->effective == bit(CAP_SYS_ADMIN) && ::poll(&p, 1, 30000) == 1;
        return [&ended, good] { ended += good ? 1 : 100; };
      };
      job.fail = [&ended](const Error&) { ended += 100; };
      auto submitted = target.submit_alone(kind, std::move(job));
      return submitted ? 0 : submitted.error().code;
    };
    bool good = true;
    for (auto kind : kKinds) {
      for (size_t i = 0; i < PrivilegedPool::kMaxAlone; ++i) good = good && wait_for_stop(**pool, kind) == 0;
      good = good && wait_for_stop(**pool, kind) == EAGAIN;
    }
    // The only thread of the pool is free all the time.
    good = good && run(**pool, 0, 30000, [](Home&) {}) == 0;
    // One that has no thread yet would be called off by the end of the pool.
    good = good && all_begun.get_future().wait_for(std::chrono::seconds(30)) == std::future_status::ready;
    pool->reset();
    return good && ended == kJobs;
  }));
}

TEST(a_long_job_makes_room_before_its_outcome_is_told) {
  CHECK(in_child([] {
    auto pool = PrivilegedPool::start(1, kMask);
    if (!pool || !(*pool)->drop_user(64100, 64100, {}) || !(*pool)->lock_down(FilterProfile::kPrivileged)) return false;
    std::promise<void> release;
    auto released = release.get_future().share();
    std::atomic<int> taken{0};
    std::atomic<int> told{0};
    auto job = [&] {
      PrivilegedPool::Job one{0, Deadline::after_ms(60000), nullptr, nullptr};
      one.fail = [](const Error&) {};
      one.run = [](Home&, const Deadline&) -> PrivilegedPool::Completion { return [] {}; };
      return one;
    };
    for (size_t i = 0; i < PrivilegedPool::kMaxAlone; ++i) {
      PrivilegedPool::Job waiting = job();
      waiting.run = [&](Home&, const Deadline&) -> PrivilegedPool::Completion {
        released.wait();
        return [&] {
          taken += (*pool)->submit_alone(PrivilegedPool::Lone::kVolume, job()) ? 1 : 0;
          ++told;
        };
      };
      if (!(*pool)->submit_alone(PrivilegedPool::Lone::kVolume, std::move(waiting))) return false;
    }
    release.set_value();
    while (told < static_cast<int>(PrivilegedPool::kMaxAlone)) ::sched_yield();
    const bool good = taken == static_cast<int>(PrivilegedPool::kMaxAlone);
    pool->reset();
    return good;
  }));
}

TEST(privileged_threads_change_their_effective_user_but_not_to_root) {
  CHECK(in_child([] {
    if (install_filter(build_filter(FilterProfile::kPrivileged)) != 0) return false;
    uid_t real = ::getuid();
    auto refused = [](uid_t r, uid_t e, uid_t s) { return ::syscall(SYS_setresuid, r, e, s) == -1 && errno == EPERM; };
    constexpr uid_t kSame = static_cast<uid_t>(-1);
    bool good = refused(kSame, 0, kSame) && refused(107, 107, kSame) && refused(kSame, 107, 107);
    return good && ::syscall(SYS_setresuid, kSame, 107, kSame) == 0 && ::geteuid() == 107 && ::getuid() == real;
  }));
}

TEST(effective_user_comes_back) {
  CHECK(in_child([] {
    // As the helper's threads: an ordinary user that may change its user.
    if (::prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0) != 0 || ::syscall(SYS_setresuid, 64100, 64100, 64100) != 0) return false;
    if (!set_capabilities({bit(CAP_SETUID) | bit(CAP_DAC_OVERRIDE), bit(CAP_SETUID) | bit(CAP_DAC_OVERRIDE), 0})) return false;
    bool good = true;
    {
      auto user = EffectiveUser::become(107);
      good = user && ::geteuid() == 107 && ::getuid() == 64100;
      good = good && current_capabilities()->effective == (bit(CAP_SETUID) | bit(CAP_DAC_OVERRIDE));
    }
    good = good && ::geteuid() == 64100;
    return good && set_capabilities({0, 0, 0}) && EffectiveUser::become(107).error().code == EPERM;
  }));
}
