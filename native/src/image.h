// Images in the containers of a launcher pod.
#pragma once

#include <sys/stat.h>

#include <string>

#include "deadline.h"
#include "launcher.h"
#include "pod.h"

namespace privsep {

inline constexpr size_t kMaxImagePath = 4095;

// The namespace of the process that listens on a container's socket in `volume`, which must be of the launcher's pod
// and not in the launcher's own.
Result<Fd> mount_namespace_of_image(int volume, const std::string& socket_name, const PodUid& pod,
                                    const Launcher& launcher, const Deadline& deadline);

// What `path` denotes in an image with this root, whatever its type. It is resolved as if the image were the root;
// empty: the only file of /disk.
Result<Fd> find_image(int root, const std::string& path);

// A detached clone of the image: read-only, nosuid, nodev, noexec, nosymfollow. Called inside the image's namespace:
// the kernel refuses to clone a mount of another one. It must be a regular file.
Result<Fd> clone_image(const std::string& path, struct stat* image);

// Gives a mounted image the attributes that clone_image gives. EBUSY while somebody has it open for writing.
Status restrict_image(int mount);

}  // namespace privsep
