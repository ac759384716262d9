// Container disks, and kernel and initrd from a container, in a launcher's mount namespace.
#pragma once

#include <optional>
#include <string>

#include "deadline.h"
#include "launcher.h"
#include "mount_point.h"
#include "namespaces.h"
#include "pod.h"

namespace privsep {

// Mounts the image of container disk `index` at disk_<index>.img of the launcher's container-disks volume:
// read-only, nosuid, nodev, noexec, nosymfollow. The image comes from the process that listens on
// disk_<index>.sock, which must be of the same pod and in another mount namespace. `image_path` is resolved as
// if the image were the root; empty: the only file of /disk. False when mounted already;
// refused when something else is.
Result<bool> mount_container_disk(Home& home, MountLock& lock, int pods_dir, const PodUid& pod,
                                  const Launcher& launcher, int index, const std::string& image_path,
                                  const Deadline& deadline);

// The same for a file of the container that listens on kernel-boot.sock, at kernel-boot/<name>. The directory is
// made with mode 0755 and belongs to root.
Result<bool> mount_kernel_artifact(Home& home, MountLock& lock, int pods_dir, const PodUid& pod,
                                   const Launcher& launcher, const std::string& image_path, const std::string& name,
                                   const Deadline& deadline);

// A descriptor of the image, open for reading on a read-only mount of its own, so that nobody who gets it can open
// the file for writing. Without `index` a file of the kernel-boot container, whose `image_path` must be given.
Result<Fd> open_container_disk(Home& home, int pods_dir, const PodUid& pod, const Launcher& launcher,
                               std::optional<int> index, const std::string& image_path, const Deadline& deadline);

// Unmounts all disk_<n>.img and what is in kernel-boot, removes the mount points, and at last disk_<n>.sock and
// kernel-boot.sock, which tells the containers' processes to end. Without `launcher` its mounts have gone with it.
// True when something was there.
Result<bool> unmount_container_disks(Home& home, MountLock& lock, int pods_dir, const PodUid& pod,
                                     const Launcher* launcher);

}  // namespace privsep
