// Launcher pods as kubelet's pod directory shows them.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fd.h"
#include "result.h"

namespace privsep {

// A canonical lower-case UUID: the only form in which a pod is named here.
class PodUid {
 public:
  static Result<PodUid> parse(std::string_view text);
  const std::string& text() const { return text_; }

 private:
  explicit PodUid(std::string text) : text_(std::move(text)) {}
  std::string text_;
};

// emptyDir volumes of a pod that calls may name.
enum class PodVolume {
  kSockets,
  kPublic,
  kPrivate,
  kContainerDisks,
  kLibvirtRuntime,
  kEphemeralDisks,
  kHotplugDisks,
  kVirtiofsContainers
};

Result<PodVolume> parse_volume(std::string_view name);
const char* volume_name(PodVolume volume);

inline constexpr const char* kLauncherSocket = "launcher-sock";
inline constexpr const char* kKernelBootSocket = "kernel-boot.sock";
inline constexpr const char* kKernelBootDirectory = "kernel-boot";
inline constexpr const char* kUnresponsiveMarker = "launcher-unresponsive";
inline constexpr int kMaxDiskIndex = 999;

// A file name that a call may give: 1 to 255 of A-Z a-z 0-9 . _ -, not starting with a dot.
Status check_file_name(std::string_view name);

// An entry in a volume or in directories below it.
struct VolumeEntry {
  static Result<VolumeEntry> parse(PodVolume volume, const std::vector<std::string>& components);

  PodVolume volume;
  std::string directory;  // "a/b", "." for the volume itself
  std::string name;
  std::string path;  // directory and name
};

// Index of "disk_<index><suffix>", -1 for any other name.
int parse_disk_name(std::string_view name, std::string_view suffix);
std::string disk_name(int index, std::string_view suffix);
// Name of the socket of a container disk; without `index` of the kernel-boot container. EINVAL out of range.
Result<std::string> image_socket_name(std::optional<int> index);

// The volume's directory (O_PATH), no link on the way.
Result<Fd> open_volume(int pods_dir, const PodUid& pod, PodVolume volume);

// Refuses a pod that has a launcher's sockets volume.
Status check_no_launcher_pod(int pods_dir, const PodUid& pod);

enum class EntryState { kAbsent, kPresent, kRefused };

struct PodState {
  bool directory = false;
  EntryState launcher_socket = EntryState::kAbsent;
  bool unresponsive_marker = false;
  std::vector<int> container_disks;  // ascending
  bool kernel_boot = false;
  bool container_disk_binary = false;
};

Result<PodState> pod_state(int pods_dir, const PodUid& pod);

}  // namespace privsep
