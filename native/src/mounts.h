// Container disks in a launcher's mount namespace.
#pragma once

#include <mutex>
#include <optional>
#include <string>

#include "deadline.h"
#include "launcher.h"
#include "namespaces.h"
#include "pod.h"

namespace privsep {

// One lock for all: looking for a mount and attaching one must not be interleaved with another thread's,
// for a second mount would silently cover the first.
using MountLock = std::mutex;

// Mounts the image of container disk `index` at disk_<index>.img of the launcher's container-disks volume:
// read-only, nosuid, nodev, noexec, nosymfollow. The image comes from the process that listens on
// disk_<index>.sock, which must be of the same pod and in another mount namespace. `image_path` is resolved as
// if the image were the root; empty: the only file of /disk. False when mounted already;
// refused when something else is.
Result<bool> mount_container_disk(Home& home, MountLock& lock, int pods_dir, const PodUid& pod,
                                  const Launcher& launcher, int index, const std::string& image_path,
                                  const Deadline& deadline);

// A descriptor of the image, open for reading on a read-only mount of its own, so that nobody who gets it can open
// the file for writing. Without `index` a file of the kernel-boot container, whose `image_path` must be given.
Result<Fd> open_container_disk(Home& home, int pods_dir, const PodUid& pod, const Launcher& launcher,
                               std::optional<int> index, const std::string& image_path, const Deadline& deadline);

// Unmounts all disk_<n>.img, then removes them and disk_<n>.sock, which tells the container-disk processes to
// end. Without `launcher` its mounts have gone with it. True when something was there.
Result<bool> unmount_container_disks(Home& home, MountLock& lock, int pods_dir, const PodUid& pod,
                                     const Launcher* launcher);

}  // namespace privsep
