// Container disks, and kernel and initrd from a container, in a launcher's mount namespace.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "deadline.h"
#include "launcher.h"
#include "mount_point.h"
#include "namespaces.h"
#include "pod.h"

namespace privsep {

// An image in a container of the pod and where it is mounted in the launcher's container-disks volume: at
// disk_<index>.img that of a container disk, from the process that listens on disk_<index>.sock; without an index at
// kernel-boot/<name> a file of the container that listens on kernel-boot.sock.
struct ImageMount {
  std::optional<int> index;
  std::string path;  // resolved as if the image were the root; empty, for a container disk only: the only file of /disk
  std::string name;
};

// Mounts them in order: read-only, nosuid, nodev, noexec, nosymfollow. Each process must be of the same pod and in
// another mount namespace. The directory kernel-boot is made with mode 0755 and belongs to root. Ends with the first that
// fails, the error's item; those before it are mounted then, be the deadline over or not. False when all were mounted
// already; refused where something else is.
Result<bool> mount_container_disks(Home& home, int pods_dir, const PodUid& pod, const Launcher& launcher,
                                   const std::vector<ImageMount>& images, const Deadline& deadline);

// A descriptor of the image, open for reading on a read-only mount of its own, so that nobody who gets it can open
// the file for writing. Without `index` a file of the kernel-boot container, whose `image_path` must be given.
Result<Fd> open_container_disk(Home& home, int pods_dir, const PodUid& pod, const Launcher& launcher,
                               std::optional<int> index, const std::string& image_path, const Deadline& deadline);

// Unmounts all disk_<n>.img and what is in kernel-boot, removes the mount points, and at last disk_<n>.sock and
// kernel-boot.sock, which tells the containers' processes to end. Without `launcher` its mounts have gone with it.
// True when something was there.
Result<bool> unmount_container_disks(Home& home, int pods_dir, const PodUid& pod, const Launcher* launcher);

}  // namespace privsep
