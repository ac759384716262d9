// Volumes that hold disk images: directories below /var/run/kubevirt-private/vmi-disks of a launcher.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "devices.h"
#include "launcher.h"
#include "namespaces.h"
#include "pod.h"

namespace privsep {

inline constexpr uint64_t kMaxDiskSize = uint64_t{1} << 60;  // bytes

// A volume's directory and a file in it.
struct VmiDisk {
  // Names of one path element each; an empty file stands for the directory itself.
  static Result<VmiDisk> parse(std::string volume, std::string file);

  std::string volume;
  std::string file;
};

struct VmiDiskState {
  bool exists = false;
  uint64_t available = 0;  // bytes that a user may still write to the file system
};

// Looks for the image. The directory must be a mount of its own and the image, if there is one, a regular file of
// that mount; a link or anything else is refused. An image that an earlier call did not live to give away counts as
// missing.
Result<VmiDiskState> vmi_disk_state(Home& home, const Launcher& launcher, const VmiDisk& disk);

// Makes the image: `size` bytes without data, mode 0644, owner uid:gid. False when there is one, which is not touched.
Result<bool> create_vmi_disk(Home& home, const Launcher& launcher, const VmiDisk& disk, uint64_t size, uid_t uid,
                             gid_t gid);

enum class VolumeClaim { kClaimed, kAlreadyOwned, kForeign, kKept };

// Gives the directory of a volume to uid:gid, if it is the root of a volume that kubelet mounted for this pod. Any
// other one, such as a directory of the host that the pod shows, is left alone (kForeign). kKept: see Given.
Result<VolumeClaim> claim_vmi_disks(Home& home, int pods_dir, const PodUid& pod, const Launcher& launcher,
                                    const std::string& volume, uid_t uid, gid_t gid);

}  // namespace privsep
