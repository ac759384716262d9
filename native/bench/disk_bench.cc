// The native work of mounting container disks and nothing else: no thread pool, no Node-API, no record. Reads lines of
// a pod's UID and indexes of its volumes from standard input, mounts the disks of each line as one call does, and prints
// the microseconds that these took together. Needs root.
// usage: privsep_disk_bench PODS_DIR
#include <fcntl.h>
#include <sched.h>
#include <time.h>

#include <cstdio>
#include <iostream>
#include <optional>
#include <sstream>
#include <string>
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
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s PODS_DIR\n", argv[0]);
    return 2;
  }
  privsep::Fd pods(::open(argv[1], O_PATH | O_DIRECTORY | O_CLOEXEC));
  // As a privileged thread of the helper: setns refuses one that shares its root.
  if (::unshare(CLONE_FS) != 0) return fail(privsep::Error::last("unshare"));
  auto home = privsep::Home::here();
  if (!home) return fail(home.error());

  std::optional<privsep::PodUid> pod;
  std::optional<privsep::Launcher> launcher;
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string uid;
    words >> uid;
    std::vector<privsep::ImageMount> images;
    for (int index = 0; words >> index;) images.push_back({index, "", ""});
    // Pinned once, as by the helper.
    if (!pod || pod->text() != uid) {
      auto parsed = privsep::PodUid::parse(uid);
      if (!parsed) return fail(parsed.error());
      pod = *parsed;
      auto pinned = privsep::pin_launcher(pods.get(), *pod, Deadline::after_ms(kDeadlineMs));
      if (!pinned) return fail(pinned.error());
      launcher = std::move(*pinned);
    }
    double start = now_us();
    auto mounted = privsep::mount_container_disks(*home, pods.get(), *pod, *launcher, images,
                                                  Deadline::after_ms(kDeadlineMs));
    double took = now_us() - start;
    if (!mounted) return fail(mounted.error());
    std::printf("%.0f\n", took);
    std::fflush(stdout);
  }
  return 0;
}
