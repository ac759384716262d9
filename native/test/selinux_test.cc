// NET-014: taps under an enforced SELinux policy. Runs where selinux_vm.sh brings its policies, /files; elsewhere the
// kernel labels nobody and there is nothing to try.
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <atomic>
#include <cstring>
#include <fstream>
#include <future>
#include <iterator>

#include "../src/kernel.h"
#include "../src/label.h"
#include "../src/net_apply.h"
#include "../src/privileged_pool.h"
#include "../src/tun_device.h"
#include "check.h"
#include "fixture.h"
#include "net_fixture.h"

using namespace privsep;
using namespace privsep::test;

namespace {

constexpr const char* kHelper = "system_u:system_r:spc_t:s0";
constexpr const char* kLauncher = "system_u:system_r:container_t:s0:c1,c2";
constexpr const char* kOlderPolicy = "/files/older";
constexpr const char* kStockPolicy = "/files/stock";
constexpr uid_t kHelperUser = 64100;
constexpr uid_t kQemuUser = 107;
constexpr uint64_t kCaps = uint64_t{1} << CAP_NET_ADMIN | uint64_t{1} << CAP_SYS_ADMIN;

bool kernel_enforces() { return ::access(kStockPolicy, R_OK) == 0; }

// selinuxfs takes a policy by one write.
bool load_policy(const char* path) {
  std::ifstream file(path, std::ios::binary);
  const std::string policy((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  Fd load(::open("/sys/fs/selinux/load", O_WRONLY | O_CLOEXEC));
  bool loaded = ::write(load.get(), policy.data(), policy.size()) == static_cast<ssize_t>(policy.size());
  if (!loaded) std::perror("load the policy");
  return loaded && check_equal(read_file("/sys/fs/selinux/enforce"), "1", "enforcing");
}

bool become(const std::string& context) {
  Fd file(::open("/proc/thread-self/attr/current", O_WRONLY | O_CLOEXEC));
  return ::write(file.get(), context.data(), context.size()) == static_cast<ssize_t>(context.size()) &&
         *own_context() == context;
}

bool become_user(uid_t user) {
  return ::setgroups(0, nullptr) == 0 && ::setresgid(user, user, user) == 0 && ::setresuid(user, user, user) == 0;
}

// A process of a launcher: label, user and nothing to do.
class LauncherProcess {
 public:
  LauncherProcess() {
    int ready[2];
    if (::pipe2(ready, O_CLOEXEC) != 0) return;
    Fd reader(ready[0]);
    Fd writer(ready[1]);
    pid_ = ::fork();
    if (pid_ == 0) {
      if (!become_user(kQemuUser) || !become(kLauncher)) ::_exit(1);
      writer.reset();
      for (;;) ::pause();
    }
    writer.reset();
    char none;
    (void)!::read(reader.get(), &none, 1);
    launcher.pidfd.reset(kernel::pidfd_open(pid_));
    launcher.pid = pid_;
  }
  ~LauncherProcess() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }

  Launcher launcher;

 private:
  pid_t pid_ = -1;
};

struct Outcome {
  bool ready = false;  // everything up to the call went well
  bool changed = false;
  bool unchanged = false;
  int code = 0;
  int children = 0;  // left afterwards
  char operation[512] = {};
};

// A helper in its domain, as main.ts starts it, sets a pod's network up: with labels, or as if SELinux were inactive.
Outcome set_up(const Pod& pod, const LauncherProcess& process, bool labels) {
  void* page = ::mmap(nullptr, sizeof(Outcome), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  auto* outcome = new (page) Outcome;
  bool good = in_child([&] {
    if (!become(kHelper)) return false;
    auto device = make_labelled_tun_device();
    if (!check_that(static_cast<bool>(device), device ? "" : device.error().operation)) return false;
    auto pool = PrivilegedPool::start(2, kCaps);
    auto filter = labels ? FilterProfile::kPrivilegedWithProcesses : FilterProfile::kPrivileged;
    if (!pool || !(*pool)->drop_user(kHelperUser, kHelperUser, {}) || !(*pool)->lock_down(filter)) return false;
    std::promise<void> done;
    PrivilegedPool::Job job{kCaps, Deadline::after_ms(60000), nullptr, nullptr};
    job.run = [&](Home&, const Deadline& deadline) -> PrivilegedPool::Completion {
      NetworkPlan plan = managed_tap_plan();
      auto context = launcher_context(process.launcher);
      outcome->ready = context && *context == kLauncher;
      if (labels && context) plan.tap_label = TapLabel{*context, true, device->get(), deadline};
      auto applied = apply_network(pod.netns(), {}, plan);
      outcome->changed = applied && *applied;
      if (!applied) {
        outcome->code = applied.error().code;
        outcome->unchanged = applied.error().unchanged;
        applied.error().operation.copy(outcome->operation, sizeof outcome->operation - 1);
      }
      siginfo_t info{};
      outcome->children = ::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | __WALL) == 0 ? 1 : 0;
      return [&] { done.set_value(); };
    };
    job.fail = [&](const Error&) { done.set_value(); };
    if (!(*pool)->submit(std::move(job))) return false;
    done.get_future().wait();
    return true;
  });
  Outcome result = *outcome;
  result.ready = result.ready && good;
  ::munmap(page, sizeof(Outcome));
  return result;
}

// 0 or the errno with which QEMU, in the launcher's domain and without capabilities, attaches to the tap.
int attach(const Pod& pod, const std::string& context) {
  // As a runtime gives the launcher its device.
  auto device = make_labelled_tun_device();
  if (!device) return device.error().code;
  pid_t child = ::fork();
  if (child == 0) {
    if (::setns(pod.netns(), CLONE_NEWNET) != 0 || !become_user(kQemuUser) || !become(context)) ::_exit(255);
    int tun = open_tun_device(device->get(), kTunName);
    if (tun < 0) ::_exit(254);
    ifreq request{};
    ::strcpy(request.ifr_name, "tap0");
    request.ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR;
    ::_exit(::ioctl(tun, TUNSETIFF, &request) == 0 ? 0 : errno);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 253;
}

}  // namespace

// NET-014
TEST(enforced_qemu_attaches_to_the_tap_of_its_launcher) {
  if (!kernel_enforces()) return;
  REQUIRE(load_policy(kStockPolicy));
  Pod pod(Pod::Addresses::kIpv4);
  LauncherProcess process;
  Outcome outcome = set_up(pod, process, true);
  check_equal(outcome.operation, "", "errors");
  CHECK(outcome.ready && outcome.changed && outcome.children == 0);
  CHECK(attach(pod, kLauncher) == 0);
  check_has(pod.run("ip -d link show tap0"), "user 107 group 107");
}

// The control: without the label the same policy refuses it.
TEST(enforced_qemu_is_refused_a_tap_with_the_label_of_the_helper) {
  if (!kernel_enforces()) return;
  REQUIRE(load_policy(kStockPolicy));
  Pod pod(Pod::Addresses::kIpv4);
  LauncherProcess process;
  Outcome outcome = set_up(pod, process, false);
  check_equal(outcome.operation, "", "errors");
  CHECK(outcome.ready && outcome.changed);
  CHECK(attach(pod, kLauncher) == EACCES);
}

TEST(enforced_policy_without_the_transition_is_named_and_leaves_nothing) {
  if (!kernel_enforces()) return;
  REQUIRE(load_policy(kOlderPolicy));
  Pod pod(Pod::Addresses::kIpv4);
  std::string before = pod.snapshot();
  LauncherProcess process;
  Outcome outcome = set_up(pod, process, true);
  CHECK(outcome.ready && outcome.code == EACCES && outcome.unchanged && outcome.children == 0);
  check_equal(outcome.operation,
              "make tap tap0 as system_u:system_r:container_t:s0:c1,c2, take the label: the SELinux policy of the node "
              "lacks (allow spc_t container_t (process (dyntransition)))",
              "error");
  check_equal(pod.snapshot(), before, "refused transition");
}
