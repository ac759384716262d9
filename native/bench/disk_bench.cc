// Mounts the container disks of a pod and nothing else: a bare loop over mount_container_disk, no thread pool, no
// Node-API, no record. Prints microseconds a mount, median and 99th percentile. Needs root.
// usage: privsep_disk_bench PODS_DIR POD_UID COUNT
#include <fcntl.h>
#include <sched.h>
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "container_disks.h"
#include "fd.h"

namespace {

constexpr int kDeadlineMs = 10000;

using privsep::Deadline;

double now_us() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) / 1e3;
}

int fail(const privsep::Error& error) {
  std::fprintf(stderr, "%s: errno %d\n", error.operation.c_str(), error.code);
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  int count = argc == 4 ? std::atoi(argv[3]) : 0;
  if (count < 1 || count > privsep::kMaxDiskIndex) {
    std::fprintf(stderr, "usage: %s PODS_DIR POD_UID COUNT, at most %d\n", argv[0], privsep::kMaxDiskIndex);
    return 2;
  }
  privsep::Fd pods(::open(argv[1], O_PATH | O_DIRECTORY | O_CLOEXEC));
  auto pod = privsep::PodUid::parse(argv[2]);
  if (!pod) return fail(pod.error());
  // As a privileged thread of the helper: setns refuses one that shares its root.
  if (::unshare(CLONE_FS) != 0) return fail(privsep::Error::last("unshare"));
  auto home = privsep::Home::here();
  if (!home) return fail(home.error());
  auto launcher = privsep::pin_launcher(pods.get(), *pod, Deadline::after_ms(kDeadlineMs));
  if (!launcher) return fail(launcher.error());

  privsep::MountLock lock;
  std::vector<double> times;
  for (int index = 0; index < count; ++index) {
    double start = now_us();
    auto mounted = privsep::mount_container_disk(*home, lock, pods.get(), *pod, *launcher, index, "",
                                                 Deadline::after_ms(kDeadlineMs));
    times.push_back(now_us() - start);
    if (!mounted) return fail(mounted.error());
  }
  std::sort(times.begin(), times.end());
  std::printf("container disk us: median %.0f p99 %.0f\n", times[times.size() / 2], times[times.size() * 99 / 100]);
  return 0;
}
