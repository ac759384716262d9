// Processes that privileged threads make where SELinux is active, and taps made in one. The label itself takes a
// kernel with SELinux: selinux_test.cc.
#include "../src/short_process.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <sys/xattr.h>

#include <atomic>
#include <thread>
#include <vector>

#include "../src/capabilities.h"
#include "../src/kernel.h"
#include "../src/label.h"
#include "../src/net_tap_label.h"
#include "../src/seccomp.h"
#include "../src/tun_device.h"
#include "../src/walk.h"
#include "check.h"
#include "fixture.h"
#include "net_fixture.h"

using namespace privsep;
using namespace privsep::test;

namespace {

// Seen by both sides, unlike everything else.
struct Shared {
  std::atomic<int> pid{0};
  std::atomic<int> value{0};
};

Shared* shared() {
  void* page = ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  return page == MAP_FAILED ? nullptr : new (page) Shared;
}

int hang(void* argument) {
  auto* seen = static_cast<Shared*>(argument);
  seen->pid = static_cast<int>(::syscall(SYS_getpid));
  for (;;) ::syscall(SYS_ppoll, nullptr, 0, nullptr, nullptr, 0);
}

bool no_children() {
  siginfo_t info{};
  return ::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | __WALL) == -1 && errno == ECHILD;
}

int open_descriptors() {
  DIR* list = ::opendir("/proc/self/fd");
  int count = 0;
  while (::readdir(list) != nullptr) ++count;
  ::closedir(list);
  return count;
}

long clone_with(unsigned long flags) {
  int pidfd = -1;
  long child = ::syscall(SYS_clone, flags, nullptr, &pidfd, nullptr, nullptr);
  if (child == 0) ::_exit(0);
  return child;
}

}  // namespace

TEST(short_process_answers_and_is_gone) {
  CHECK(in_child([] {
    Shared* seen = shared();
    std::atomic<int> signals{0};
    static std::atomic<int>* counter = nullptr;
    counter = &signals;
    ::signal(SIGCHLD, [](int) { ++*counter; });
    int before = open_descriptors();
    std::thread maker([&] {
      auto code = run_short_process(
          [](void* argument) {
            auto* report = static_cast<Shared*>(argument);
            report->pid = static_cast<int>(::syscall(SYS_getpid));
            report->value = static_cast<int>(::syscall(SYS_gettid));
            return 42;
          },
          seen, Deadline::after_ms(10000));
      if (!code || *code != 42) seen->value = -1;
    });
    maker.join();
    // A process of one thread, not one of ours.
    bool good = seen->value > 0 && seen->value == seen->pid && seen->pid != ::getpid();
    return good && signals == 0 && no_children() && open_descriptors() == before &&
           ::kill(seen->pid, 0) == -1 && errno == ESRCH;
  }));
}

TEST(short_process_that_hangs_is_killed_at_the_deadline) {
  CHECK(in_child([] {
    Shared* seen = shared();
    int before = open_descriptors();
    auto deadline = Deadline::after_ms(100);
    auto code = run_short_process(hang, seen, deadline);
    return !code && code.error().code == ETIMEDOUT && deadline.passed() && seen->pid > 0 && no_children() &&
           open_descriptors() == before && ::kill(seen->pid, 0) == -1 && errno == ESRCH;
  }));
}

TEST(short_process_that_dies_is_told_of) {
  CHECK(in_child([] {
    auto code = run_short_process(
        [](void*) {
          ::syscall(SYS_kill, ::syscall(SYS_getpid), SIGKILL);
          return 0;
        },
        nullptr, Deadline::after_ms(10000));
    return !code && code.error().code == ECANCELED && no_children();
  }));
}

TEST(short_process_ends_with_its_maker) {
  Shared* seen = shared();
  pid_t maker = ::fork();
  if (maker == 0) {
    (void)run_short_process(hang, seen, Deadline::after_ms(60000));
    ::_exit(0);
  }
  while (seen->pid == 0) ::sched_yield();
  Fd pidfd(kernel::pidfd_open(seen->pid));
  CHECK(pidfd.valid() && ::kill(maker, SIGKILL) == 0 && ::waitpid(maker, nullptr, 0) == maker);
  pollfd p{pidfd.get(), POLLIN, 0};
  CHECK(::poll(&p, 1, 10000) == 1);
}

TEST(short_process_keeps_one_descriptor_and_one_capability) {
  CHECK(in_child([] {
    std::vector<Fd> open;
    for (int i = 0; i < 50; ++i) open.emplace_back(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    int kept = open[20].get();
    auto code = run_short_process(
        [](void* argument) {
          int fd = *static_cast<int*>(argument);
          if (confine_to(fd) != 0) return 1;
          for (int other = 0; other < 1000; ++other) {
            if ((::fcntl(other, F_GETFD) != -1) != (other == fd)) return 2;
          }
          auto caps = current_capabilities();
          constexpr uint64_t kNetAdmin = uint64_t{1} << CAP_NET_ADMIN;
          return caps && caps->permitted == kNetAdmin && caps->effective == kNetAdmin && caps->inheritable == 0 ? 7 : 3;
        },
        &kept, Deadline::after_ms(10000));
    // Its maker's are as they were.
    return code && *code == 7 && ::fcntl(open[49].get(), F_GETFD) != -1;
  }));
}

TEST(own_tun_device_is_labelled_and_seen_by_nobody) {
  std::string mounts = read_file("/proc/self/mountinfo");
  auto directory = make_labelled_tun_device();
  REQUIRE(directory);
  CHECK(read_file("/proc/self/mountinfo") == mounts);
  for (const std::string& path : {fd_path(directory->get()) + "/tun", fd_path(directory->get()) + "/."}) {
    char label[64] = {};
    CHECK(::getxattr(path.c_str(), "security.selinux", label, sizeof label) == 38);
    CHECK(std::string(label) == "system_u:object_r:container_file_t:s0");
  }
  Fd tun(open_tun_device(directory->get(), kTunName));
  CHECK(tun.valid());
  CHECK(open_tun_device(AT_FDCWD, "/dev/null") == -1 && errno == ENODEV);
}

TEST(filter_refuses_every_process_without_selinux) {
  CHECK(in_child([] {
    if (install_filter(build_filter(FilterProfile::kPrivileged)) != 0) return false;
    auto code = run_short_process([](void*) { return 0; }, nullptr, Deadline::after_ms(10000));
    return !code && code.error().code == EPERM && clone_with(SIGCHLD) == -1 && errno == EPERM;
  }));
}

TEST(filter_allows_exactly_the_short_process_with_selinux) {
  CHECK(in_child([] {
    if (install_filter(build_filter(FilterProfile::kPrivilegedWithProcesses)) != 0) return false;
    const unsigned long refused[] = {0,
                                     SIGCHLD,
                                     CLONE_PIDFD | SIGCHLD,
                                     CLONE_PIDFD | CLONE_VM,
                                     CLONE_PIDFD | CLONE_FILES,
                                     CLONE_PIDFD | CLONE_FS,
                                     CLONE_PIDFD | CLONE_PARENT,
                                     CLONE_PIDFD | CLONE_NEWPID,
                                     CLONE_PIDFD | CLONE_NEWUSER,
                                     CLONE_VM | CLONE_VFORK | SIGCHLD};
    for (unsigned long flags : refused) {
      if (clone_with(flags) != -1 || errno != EPERM) return false;
    }
    if (::fork() != -1 || errno != EPERM) return false;
    Fd self(kernel::pidfd_open(::getpid()));
    if (::syscall(SYS_pidfd_send_signal, self.get(), SIGTERM, nullptr, 0) != -1 || errno != EPERM) return false;
    auto code = run_short_process(
        [](void*) {
          // It has the same filter, and runs no program.
          char* none[] = {nullptr};
          return ::execve("/proc/self/exe", none, none) == -1 && errno == EPERM ? 7 : 1;
        },
        nullptr, Deadline::after_ms(10000));
    if (!code || *code != 7) return false;
    Shared* seen = shared();
    code = run_short_process(hang, seen, Deadline::after_ms(50));
    return !code && code.error().code == ETIMEDOUT;
  }));
}

TEST(labels_of_processes_are_labels) {
  for (const char* good : {"system_u:system_r:container_t:s0:c1,c2", "a:b:c", "u:r:t:s0-s15:c0.c1023", "u:r:a.b:s0"})
    CHECK(is_process_context(good));
  for (const char* bad : {"", "unconfined", "a:b", "a:b:", ":b:c", "a:b:c:", "a:b:c:s0 ", "a:b:c\n", "a:b c:d", "a:b:c:s0\"",
                          "docker-default (enforce)"})
    CHECK(!is_process_context(bad));
  CHECK(!is_process_context(std::string_view("a:b:c\0", 6)));
  CHECK(!is_process_context("a:b:" + std::string(4093, 'c')) && is_process_context("a:b:" + std::string(4092, 'c')));
  CHECK(context_type("system_u:system_r:container_t:s0:c1,c2") == "container_t" && context_type("a:b:c") == "c");
}

// The kernel labels nobody: EINVAL, as an unknown label gets it.
TEST(tap_whose_label_is_refused_is_not_made) {
  if (own_context()) return;
  Pod pod(Pod::Addresses::kIpv4);
  std::string before = pod.snapshot();
  NetworkPlan plan = managed_tap_plan();
  Fd devices(::open("/dev/net", O_PATH | O_DIRECTORY | O_CLOEXEC));
  plan.tap_label = TapLabel{"system_u:system_r:container_t:s0:c1,c2", true, devices.get(), Deadline::after_ms(20000)};
  auto outcome = pod.apply(plan);
  CHECK(outcome.kind == Pod::Outcome::Kind::kFailed && outcome.code == EINVAL && outcome.unchanged);
  check_equal(pod.snapshot(), before, "refused label");
}

TEST(tap_of_a_short_process_is_like_any_other) {
  if (own_context()) return;
  NetworkPlan plan = managed_tap_plan();
  Pod usual(Pod::Addresses::kIpv4);
  CHECK(usual.apply(plan).kind == Pod::Outcome::Kind::kChanged);
  Pod pod(Pod::Addresses::kIpv4);
  Fd devices(::open("/dev/net", O_PATH | O_DIRECTORY | O_CLOEXEC));
  plan.tap_label = TapLabel{"system_u:system_r:container_t:s0:c1,c2", false, devices.get(), Deadline::after_ms(20000)};
  CHECK(pod.apply(plan).kind == Pod::Outcome::Kind::kChanged);
  check_equal(pod.snapshot(), usual.snapshot(), "tap of a short process");
  CHECK(pod.apply(plan).kind == Pod::Outcome::Kind::kUnchanged);
  // Every later change fails once: what the process made goes as well.
  Pod failing(Pod::Addresses::kIpv4);
  std::string before = failing.snapshot();
  bool made = false;
  auto outcome = failing.apply(plan, [&](unsigned, const std::string& operation) {
    bool fails = made && operation.rfind("undo", 0) != 0;
    made = made || operation == "create tap tap0";
    return fails ? EPERM : 0;
  });
  CHECK(outcome.kind == Pod::Outcome::Kind::kFailed && outcome.unchanged && outcome.faults > 0);
  check_equal(failing.snapshot(), before, "undone");
}

TEST(tap_whose_process_runs_out_of_time_is_not_left) {
  if (own_context()) return;
  Pod pod(Pod::Addresses::kIpv4);
  std::string before = pod.snapshot();
  NetworkPlan plan = managed_tap_plan();
  Fd devices(::open("/dev/net", O_PATH | O_DIRECTORY | O_CLOEXEC));
  plan.tap_label = TapLabel{"a:b:c", false, devices.get(), Deadline::after_ms(0)};
  auto outcome = pod.apply(plan);
  // It may have been quick.
  if (outcome.kind == Pod::Outcome::Kind::kChanged) return;
  CHECK(outcome.code == ETIMEDOUT && outcome.unchanged);
  check_equal(pod.snapshot(), before, "out of time");
}
