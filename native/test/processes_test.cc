// Finding processes and knowing them again.
#include "../src/processes.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <algorithm>

#include "../src/cgroup.h"
#include "../src/cpu_list.h"
#include "../src/kernel.h"
#include "check.h"
#include "fixture.h"

using namespace privsep;
using namespace privsep::test;

namespace {

const std::string kTail = " 1 1 0 -1 2097472 0 0 0 0 0 0 0 0 20 0 1 0 4711 0 0 1844 0\n";

// A child that is called so and lives until the test ends it.
class Child {
 public:
  explicit Child(const char* comm) {
    int ready[2];
    if (::pipe2(ready, O_CLOEXEC) != 0) ::abort();
    pid_ = ::fork();
    if (pid_ == 0) {
      ::prctl(PR_SET_NAME, comm);
      (void)!::write(ready[1], "x", 1);
      for (;;) ::pause();
    }
    char byte;
    if (::read(ready[0], &byte, 1) != 1) ::abort();
    ::close(ready[0]);
    ::close(ready[1]);
  }
  ~Child() { end(); }
  void end() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = 0;
};

Launcher launcher_of(pid_t pid) {
  Launcher launcher;
  launcher.pidfd.reset(kernel::pidfd_open(pid));
  return launcher;
}

const Process* find(const std::vector<Process>& processes, pid_t pid) {
  auto found = std::find_if(processes.begin(), processes.end(), [pid](const Process& each) { return each.pid == pid; });
  return found == processes.end() ? nullptr : &*found;
}

}  // namespace

TEST(process_stat_is_read_past_any_command) {
  for (const char* comm : {"qemu-system-x86", "a) S 1 (b", ")", "", "a\nb", " "}) {
    auto process = parse_process_stat("85 (" + std::string(comm) + ") S 12" + kTail);
    if (!CHECK(process)) continue;
    CHECK(process->pid == 85 && process->ppid == 12 && process->start_ticks == 4711 && process->comm == comm);
    CHECK(process->kernel_thread && !process->ended);
  }
  CHECK(parse_process_stat("85 (x) Z 12" + kTail)->ended);
  CHECK(!parse_process_stat("85 (x) S 12 1 1 0 -1 64 0 0 0 0 0 0 0 0 20 0 1 0 4711 0\n")->kernel_thread);
}

TEST(process_stat_that_is_none) {
  const std::string good = "85 (x) S 12" + kTail;
  for (const std::string& bad :
       {std::string(), std::string("85"), "x" + good, "85 (x S 12" + kTail, "85 (x) S x" + kTail,
        good.substr(0, 40), "85 (" + std::string(65, 'x') + ") S 12" + kTail, std::string("85 (x) S 99999999999") + kTail}) {
    CHECK(!parse_process_stat(bad));
  }
}

TEST(cpu_lists_are_read_and_written) {
  CHECK(format_cpu_list(*parse_cpu_list("0-2,7\n")) == "0,1,2,7");
  CHECK(format_cpu_list(*parse_cpu_list("7,7,1")) == "1,7");
  CHECK(parse_cpu_list("")->empty() && parse_cpu_list("\n")->empty());
  for (const char* bad : {",", "1,", "1-", "-1", "2-1", "a", "1 ", "0-8192", "8192", "1-2-3", "+1"}) {
    CHECK(!parse_cpu_list(bad));
  }
}

TEST(container_cgroup_in_both_versions) {
  const std::string pod = "/kubepods/pod" + std::string(kPod);
  const std::string both = "4:cpu,cpuset:" + pod + "/v1\n0::" + pod + "/v2\n";
  CHECK(has_hierarchy(both, "cpuset") && has_hierarchy(both, "cpu") && !has_hierarchy(both, "cpus"));
  CHECK(!has_hierarchy("0::" + pod + "\n", "cpuset"));
  CHECK(*container_cgroup(both, "cpuset", kPod) == pod.substr(1) + "/v1");
  CHECK(*container_cgroup(both, "", kPod) == pod.substr(1) + "/v2");
  CHECK(*container_cgroup("0::" + pod + "/abc/housekeeping\n", "", kPod) == pod.substr(1) + "/abc");
  CHECK(*container_cgroup("0::" + pod + "/housekeeping/abc\n", "", kPod) == pod.substr(1) + "/housekeeping/abc");
}

TEST(container_cgroup_is_the_pods_and_within_reach) {
  const std::string pod = "/kubepods/pod" + std::string(kPod);
  const std::string other = "/kubepods/pod11111111-2222-3333-4444-555555555555";
  CHECK(container_cgroup("3:cpuset:" + other + "/x\n0::" + pod + "/x\n", "cpuset", kPod).error().refused);
  CHECK(container_cgroup("3:cpuset:" + other + pod + "/x\n", "cpuset", kPod).error().refused);
  CHECK(container_cgroup("0::/../.." + pod + "/x\n", "", kPod).error().code == EXDEV);
  CHECK(!container_cgroup("0::" + pod + "/../x\n", "", kPod));
  CHECK(container_cgroup("3:memory:" + pod + "\n", "cpuset", kPod).error().code == ENOENT);
}

TEST(children_of_a_launcher_and_of_its_parent_are_found) {
  Child launcher("virt-launcher");
  // What has ended before it, as daemons leave it, must not hide it.
  const pid_t ended = ::fork();
  if (ended == 0) ::_exit(0);
  siginfo_t info {};
  CHECK(::waitid(P_PID, static_cast<id_t>(ended), &info, WEXITED | WNOWAIT) == 0);
  Child sibling("qemu-system-x86_64");
  auto processes = launcher_processes(launcher_of(launcher.pid()), Deadline::after_ms(5000));
  REQUIRE(processes);
  CHECK(processes->launcher == launcher.pid() && processes->monitor == ::getpid());
  const Process* found = find(processes->children, sibling.pid());
  REQUIRE(found != nullptr);
  CHECK(found->ppid == ::getpid() && found->comm == "qemu-system-x86" && !found->kernel_thread);
  CHECK(find(processes->children, ::getpid()) == nullptr);
  CHECK(find(processes->children, ended) == nullptr);
  CHECK(::waitpid(ended, nullptr, 0) == ended);
  CHECK(std::is_sorted(processes->children.begin(), processes->children.end(),
                       [](const Process& a, const Process& b) { return a.pid < b.pid; }));
  auto pidfd = launcher_of(launcher.pid());
  launcher.end();
  CHECK(launcher_processes(pidfd, Deadline::after_ms(5000)).error().code == ESRCH);
  CHECK(launcher_processes(launcher_of(sibling.pid()), Deadline::after_ms(0)).error().code == ETIMEDOUT);
}

TEST(kernel_threads_are_the_kernels) {
  Child impostor("kthreadd");
  auto threads = kernel_threads("kthreadd", Deadline::after_ms(5000));
  CHECK(threads && threads->empty());
  // kthreadd's own children; this one every kernel has.
  threads = kernel_threads("ksoftirqd/0", Deadline::after_ms(5000));
  REQUIRE(threads);
  for (const Process& thread : *threads) CHECK(hold_kernel_thread(thread));
  Process user = *parse_process_stat(read_file("/proc/" + std::to_string(impostor.pid()) + "/stat"));
  CHECK(hold_kernel_thread(user).error().refused);
  user.kernel_thread = true;
  user.ppid = 2;
  CHECK(hold_kernel_thread(user).error().code == ESRCH);
}

TEST(process_that_is_another_one_is_refused) {
  const PodUid pod = *PodUid::parse(kPod);
  Child child("qemu-kvm");
  const Process found = *parse_process_stat(read_file("/proc/" + std::to_string(child.pid()) + "/stat"));
  auto outside = hold_process(pod, found);
  CHECK(!outside && outside.error().refused && outside.error().code == EPERM);
  for (int i = 0; i < 3; ++i) {
    Process changed = found;
    if (i == 0) changed.start_ticks += 1;
    if (i == 1) changed.comm = "qemu-system-x86";
    if (i == 2) changed.ppid = 1;
    auto held = hold_process(pod, changed);
    CHECK(!held && held.error().refused && held.error().code == ESRCH);
  }
  child.end();
  CHECK(hold_process(pod, found).error().code == ESRCH);
}
