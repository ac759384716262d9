// Files in a pod's volumes, without trusting what is there.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "pod.h"
#include "result.h"

namespace privsep {

inline constexpr size_t kMaxVolumeFile = 64 * 1024;

struct FileOwner {
  uid_t uid = 0;
  gid_t gid = 0;
  mode_t mode = 0;  // permission bits
};

enum class WriteOutcome : uint8_t { kEqual, kCreated, kReplaced };

// Makes or replaces volume/name as a whole: a temporary file of our own is written, synced and renamed over it.
// What stood there before, also a link, is never opened for writing; an equal file is left alone.
Result<WriteOutcome> write_volume_file(int pods_dir, const PodUid& pod, PodVolume volume, const std::string& name,
                               const std::string& content, const FileOwner& owner);

// Unlinks volume/name, whatever but a directory it is: a link goes itself, not what it leads to. False when
// there is none.
Result<bool> remove_volume_file(int pods_dir, const PodUid& pod, PodVolume volume, const std::string& name);

// Bytes of a regular file. Everything else, and a link or a mount on the way below the volume, is refused.
Result<uint64_t> volume_file_size(int pods_dir, const PodUid& pod, const VolumeEntry& entry);

}  // namespace privsep
