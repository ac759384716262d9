// Limits, scheduling and cpusets of real processes. What this kernel or machine does not have is said and left out.
#include "../src/resources.h"

#include <fcntl.h>
#include <linux/kvm.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <cstdlib>
#include <thread>

#include "../src/cgroup.h"
#include "../src/housekeeping.h"
#include "../src/walk.h"
#include "check.h"
#include "fixture.h"

using namespace privsep;
using namespace privsep::test;

namespace {

void left_out(const char* test, const char* why) { std::fprintf(stderr, "%s left out: %s\n", test, why); }

// A pod's cgroup with one container in the v2 hierarchy of this machine.
class PodCgroup {
 public:
  PodCgroup() {
    if (::mount("cgroup2", mount_.path().c_str(), "cgroup2", 0, nullptr) != 0) ::abort();
    auto controllers = read_file(mount_.path() + "/cgroup.controllers");
    has_cpuset = controllers.find("cpuset") != controllers.npos;
    if (has_cpuset) write(mount_.path() + "/cgroup.subtree_control", "+cpuset");
    pod_ = mount_.path() + "/pod" + kPod;
    for (const std::string& path : {pod_, path()}) {
      if (::mkdir(path.c_str(), 0755) != 0) ::abort();
      if (has_cpuset && path == pod_) write(pod_ + "/cgroup.subtree_control", "+cpuset");
    }
    fd.reset(::open(path().c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  }
  ~PodCgroup() {
    for (const std::string& path : {housekeeping(), path(), pod_}) ::rmdir(path.c_str());
    ::umount2(mount_.path().c_str(), MNT_DETACH);
  }
  std::string path() const { return pod_ + "/compute"; }
  std::string housekeeping() const { return path() + "/" + kHousekeeping; }
  // The file system's answer, as errno.
  static int write(const std::string& path, const std::string& text) {
    Fd file(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
    return ::write(file.get(), text.data(), text.size()) < 0 ? errno : 0;
  }

  bool has_cpuset = false;
  Fd fd;

 private:
  TemporaryDirectory mount_;
  std::string pod_;
};

// A child in the pod with a thread of each name, until the test ends it. `before` runs in it first.
class Qemu {
 public:
  Qemu(const PodCgroup& pod, const std::vector<std::string>& threads, const std::function<void()>& before = [] {}) {
    int ready[2];
    if (::pipe2(ready, O_CLOEXEC) != 0) ::abort();
    pid_ = ::fork();
    if (pid_ == 0) {
      before();
      ::prctl(PR_SET_NAME, "qemu-kvm");
      for (const std::string& name : threads) {
        std::thread([name, fd = ready[1]] {
          ::prctl(PR_SET_NAME, name.c_str());
          (void)!::write(fd, "x", 1);
          for (;;) ::pause();
        }).detach();
      }
      (void)!::write(ready[1], "x", 1);
      for (;;) ::pause();
    }
    char byte;
    for (size_t i = 0; i <= threads.size(); ++i) {
      if (::read(ready[0], &byte, 1) != 1) ::abort();
    }
    ::close(ready[0]);
    ::close(ready[1]);
    if (PodCgroup::write(pod.path() + "/cgroup.procs", std::to_string(pid_)) != 0) ::abort();
  }
  ~Qemu() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  pid_t pid() const { return pid_; }
  Process process() const { return *parse_process_stat(read_file("/proc/" + std::to_string(pid_) + "/stat")); }
  Thread thread(const std::string& name) const {
    auto threads = process_threads(*PodUid::parse(kPod), process());
    if (!threads) ::abort();
    for (const Thread& each : *threads) {
      if (each.comm == name + "\n") return each;
    }
    ::abort();
  }

 private:
  pid_t pid_ = 0;
};

const PodUid& pod_uid() {
  static const PodUid uid = *PodUid::parse(kPod);
  return uid;
}

bool is_fifo(pid_t tid, int priority) {
  sched_param param{};
  return ::sched_getscheduler(tid) == SCHED_FIFO && ::sched_getparam(tid, &param) == 0 &&
         param.sched_priority == priority;
}

}  // namespace

// STO-029 AFT-049
TEST(resources_memlock_is_lifted_of_a_process_of_the_pod) {
  PodCgroup pod;
  Qemu qemu(pod, {});
  auto lifted = lift_memlock(pod_uid(), qemu.process());
  if (!lifted && lifted.error().code == EPERM && !lifted.error().refused) {
    CHECK(lifted.error().unchanged);
    left_out(__func__, "no CAP_SYS_RESOURCE");
    return;
  }
  CHECK(lifted && *lifted);
  rlimit now{};
  CHECK(::prlimit(qemu.pid(), RLIMIT_MEMLOCK, nullptr, &now) == 0);
  CHECK(now.rlim_cur == RLIM_INFINITY && now.rlim_max == RLIM_INFINITY);
  lifted = lift_memlock(pod_uid(), qemu.process());
  CHECK(lifted && !*lifted);
}

TEST(resources_threads_are_scheduled_once) {
  PodCgroup pod;
  Qemu qemu(pod, {"CPU 0/KVM", "CPU 1/KVM"});
  const Thread first = qemu.thread("CPU 0/KVM");
  auto changed = schedule_threads(pod_uid(), qemu.process(), {first});
  CHECK(changed && *changed);
  CHECK(is_fifo(first.tid, 1) && ::sched_getscheduler(qemu.thread("CPU 1/KVM").tid) == SCHED_OTHER);
  changed = schedule_threads(pod_uid(), qemu.process(), {first});
  CHECK(changed && !*changed);
  // A thread of another process, by its number; and one that is called otherwise by now.
  auto foreign = schedule_threads(pod_uid(), qemu.process(), {{::getpid(), "CPU 0/KVM\n"}});
  CHECK(!foreign && foreign.error().code == ESRCH && ::sched_getscheduler(0) == SCHED_OTHER);
  CHECK(schedule_threads(pod_uid(), qemu.process(), {{first.tid, "CPU 7/KVM\n"}}).error().refused);
}

// The timer of a VM in the kernel, for which a VM must be made: QEMU is this test's child, which makes it.
TEST(resources_timer_thread_gets_the_cpus_of_a_vcpu) {
  if (::getenv("PRIVSEP_TEST_KVM") == nullptr) return left_out(__func__, "PRIVSEP_TEST_KVM does not allow KVM");
  Fd kvm(::open("/dev/kvm", O_RDWR | O_CLOEXEC));
  REQUIRE(kvm.valid());
  PodCgroup pod;
  Qemu qemu(pod, {"CPU 0/KVM"}, [&] {
    int vm = ::ioctl(kvm.get(), KVM_CREATE_VM, 0);
    kvm_pit_config config{};
    if (vm < 0 || ::ioctl(vm, KVM_CREATE_IRQCHIP) != 0 || ::ioctl(vm, KVM_CREATE_PIT2, &config) != 0) ::abort();
  });
  auto pits = kernel_threads("kvm-pit/" + std::to_string(qemu.pid()), Deadline::after_ms(5000));
  REQUIRE(pits && pits->size() == 1);
  const Process pit = pits->front();
  const Thread vcpu = qemu.thread("CPU 0/KVM");
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(0, &one);
  CHECK(::sched_setaffinity(vcpu.tid, sizeof one, &one) == 0);
  auto changed = affine_kernel_thread(pod_uid(), qemu.process(), vcpu, pit, true);
  CHECK(changed && *changed);
  cpu_set_t now;
  CHECK(::sched_getaffinity(pit.pid, sizeof now, &now) == 0 && CPU_EQUAL(&now, &one) && is_fifo(pit.pid, 2));
  changed = affine_kernel_thread(pod_uid(), qemu.process(), vcpu, pit, true);
  CHECK(changed && !*changed);
}

TEST(resources_no_process_is_taken_for_a_thread_of_the_kernel) {
  PodCgroup pod;
  Qemu qemu(pod, {"CPU 0/KVM"});
  auto bound = affine_kernel_thread(pod_uid(), qemu.process(), qemu.thread("CPU 0/KVM"), qemu.process(), true);
  CHECK(!bound && bound.error().refused && ::sched_getscheduler(qemu.pid()) == SCHED_OTHER);
}

// STO-030
TEST(housekeeping_on_cgroup_v2_is_a_threaded_child) {
  PodCgroup pod;
  if (!pod.has_cpuset) return left_out(__func__, "the cpuset controller is with cgroup v1");
  Qemu qemu(pod, {"CPU 0/KVM", "IO iothread1"});
  auto done = isolate_threads(pod.fd.get(), true, 107, {}, Deadline::after_ms(5000));
  CHECK(done && done->changed && done->moved == 0);
  CHECK(read_file(pod.housekeeping() + "/cgroup.type") == "threaded\n");
  CHECK(read_file(pod.housekeeping() + "/cgroup.threads").empty());
  done = isolate_threads(pod.fd.get(), true, 107, {0}, Deadline::after_ms(5000));
  CHECK(done && done->changed && done->moved == 2);
  CHECK(read_file(pod.housekeeping() + "/cpuset.cpus") == "0\n");
  CHECK(read_file(pod.path() + "/cgroup.threads") == std::to_string(qemu.thread("CPU 0/KVM").tid) + "\n");
  done = isolate_threads(pod.fd.get(), true, 107, {0}, Deadline::after_ms(5000));
  CHECK(done && !done->changed && done->moved == 0);
  CHECK(isolate_threads(pod.fd.get(), true, 107, {0, 4095}, Deadline::after_ms(5000)).error().refused);
}

// The files of v2 in their order, on a machine whose v2 has no cpusets: a directory stands for the cgroup.
TEST(housekeeping_on_cgroup_v2_writes_what_is_missing) {
  TemporaryDirectory directory;
  const std::string child = directory.path() + "/" + kHousekeeping;
  auto make = [&](const char* enabled, const char* type, const char* cpus) {
    ::mkdir(child.c_str(), 0755);
    write_file(directory.path() + "/cgroup.subtree_control", enabled);
    write_file(directory.path() + "/cpuset.cpus.effective", "0-3\n");
    write_file(directory.path() + "/cgroup.threads", "");
    write_file(child + "/cgroup.type", type);
    write_file(child + "/cgroup.subtree_control", enabled);
    write_file(child + "/cpuset.cpus", cpus);
    write_file(child + "/cgroup.threads", "");
  };
  make("", "domain\n", "");
  auto done = isolate_threads(directory.fd(), true, 107, {1, 3}, Deadline::after_ms(5000));
  CHECK(done && done->changed && done->moved == 0);
  CHECK(read_file(directory.path() + "/cgroup.subtree_control") == "+cpuset");
  CHECK(read_file(child + "/cgroup.type") == "threaded");
  CHECK(read_file(child + "/cgroup.subtree_control") == "+cpuset");
  CHECK(read_file(child + "/cpuset.cpus") == "1,3");
  make("cpu cpuset\n", "threaded\n", "1,3\n");
  done = isolate_threads(directory.fd(), true, 107, {1, 3}, Deadline::after_ms(5000));
  CHECK(done && !done->changed);
  auto refused = isolate_threads(directory.fd(), true, 107, {4}, Deadline::after_ms(5000));
  CHECK(!refused && refused.error().refused && refused.error().unchanged);
  // Something else in its place, and a thread that has no number here.
  write_file(directory.path() + "/cgroup.threads", "0\n");
  CHECK(isolate_threads(directory.fd(), true, 107, {1}, Deadline::after_ms(5000)).error().refused);
  for (const char* name : {"cgroup.type", "cgroup.subtree_control", "cpuset.cpus", "cgroup.threads"}) {
    ::unlink((child + "/" + name).c_str());
  }
  ::rmdir(child.c_str());
  CHECK(::symlink("/sys", child.c_str()) == 0);
  CHECK(isolate_threads(directory.fd(), true, 107, {}, Deadline::after_ms(5000)).error().refused);
  ::unlink(child.c_str());
}
