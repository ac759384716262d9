#include "pod.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>

#include "walk.h"

namespace privsep {

namespace {

constexpr size_t kMaxName = 255;
constexpr size_t kMaxComponents = 4;
constexpr const char* kEmptyDirs = "/volumes/kubernetes.io~empty-dir/";
// A pod may put what it likes into its volume; more than this is not looked at.
constexpr size_t kMaxDiskEntries = 4096;

bool is_hex(char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); }

bool is_missing(const Error& error) { return error.code == ENOENT || error.code == ENOTDIR; }

EntryState socket_state(int directory) {
  auto entry = stat_entry(directory, kLauncherSocket, kLauncherSocket);
  if (!entry) return EntryState::kRefused;
  if (!*entry) return EntryState::kAbsent;
  return S_ISSOCK((*entry)->st_mode) ? EntryState::kPresent : EntryState::kRefused;
}

Result<std::vector<int>> container_disks(int directory) {
  auto names = read_directory(directory, kMaxDiskEntries, "container-disks");
  if (!names) return names.error();
  std::vector<int> indexes;
  for (const std::string& name : *names) {
    int index = parse_disk_name(name, ".sock");
    if (index < 0) continue;
    auto entry = stat_entry(directory, name, name);
    if (entry && *entry && S_ISSOCK((*entry)->st_mode)) indexes.push_back(index);
  }
  std::sort(indexes.begin(), indexes.end());
  return indexes;
}

}  // namespace

Result<PodUid> PodUid::parse(std::string_view text) {
  bool valid = text.size() == 36;
  for (size_t i = 0; valid && i < text.size(); ++i) {
    bool dash = i == 8 || i == 13 || i == 18 || i == 23;
    valid = dash ? text[i] == '-' : is_hex(text[i]);
  }
  if (!valid) return Error::refusal(EINVAL, "pod UID");
  return PodUid(std::string(text));
}

Result<PodVolume> parse_volume(std::string_view name) {
  for (PodVolume volume :
       {PodVolume::kSockets, PodVolume::kPublic, PodVolume::kPrivate, PodVolume::kContainerDisks,
        PodVolume::kLibvirtRuntime, PodVolume::kEphemeralDisks, PodVolume::kHotplugDisks, PodVolume::kVirtiofsContainers}) {
    if (name == volume_name(volume)) return volume;
  }
  return Error::refusal(EINVAL, "volume");
}

const char* volume_name(PodVolume volume) {
  switch (volume) {
    case PodVolume::kSockets:
      return "sockets";
    case PodVolume::kPublic:
      return "public";
    case PodVolume::kPrivate:
      return "private";
    case PodVolume::kContainerDisks:
      return "container-disks";
    case PodVolume::kLibvirtRuntime:
      return "libvirt-runtime";
    case PodVolume::kEphemeralDisks:
      return "ephemeral-disks";
    case PodVolume::kHotplugDisks:
      return "hotplug-disks";
    case PodVolume::kVirtiofsContainers:
      return "virtiofs-containers";
  }
  return "";
}

Status check_file_name(std::string_view name) {
  bool valid = !name.empty() && name.size() <= kMaxName && name[0] != '.';
  for (char c : name) {
    valid = valid && ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
                      c == '_' || c == '-');
  }
  if (!valid) return Error::refusal(EINVAL, "file name");
  return ok();
}

Result<VolumeEntry> VolumeEntry::parse(PodVolume volume, const std::vector<std::string>& components) {
  if (components.empty() || components.size() > kMaxComponents) return Error::refusal(EINVAL, "path in volume");
  VolumeEntry entry{volume, ".", components.back(), {}};
  for (const std::string& component : components) {
    auto valid = check_file_name(component);
    if (!valid) return valid.error();
    if (!entry.path.empty()) {
      entry.directory = entry.path;
      entry.path += '/';
    }
    entry.path += component;
  }
  return entry;
}

int parse_disk_name(std::string_view name, std::string_view suffix) {
  constexpr std::string_view prefix = "disk_";
  if (name.size() <= prefix.size() + suffix.size() || name.substr(0, prefix.size()) != prefix ||
      name.substr(name.size() - suffix.size()) != suffix) {
    return -1;
  }
  std::string_view digits = name.substr(prefix.size(), name.size() - prefix.size() - suffix.size());
  if (digits.size() > 3 || (digits.size() > 1 && digits[0] == '0')) return -1;
  int index = 0;
  for (char c : digits) {
    if (c < '0' || c > '9') return -1;
    index = index * 10 + (c - '0');
  }
  return index;
}

std::string disk_name(int index, std::string_view suffix) {
  return "disk_" + std::to_string(index) + std::string(suffix);
}

Result<std::string> image_socket_name(std::optional<int> index) {
  if (!index) return std::string(kKernelBootSocket);
  if (*index < 0 || *index > kMaxDiskIndex) return Error::refusal(EINVAL, "volume index");
  return disk_name(*index, ".sock");
}

Result<Fd> open_volume(int pods_dir, const PodUid& pod, PodVolume volume) {
  std::string path = pod.text() + kEmptyDirs + volume_name(volume);
  return walk(pods_dir, path, O_PATH | O_DIRECTORY, kNoLinks, std::string("volume ") + volume_name(volume));
}

Status check_no_launcher_pod(int pods_dir, const PodUid& pod) {
  auto sockets = open_volume(pods_dir, pod, PodVolume::kSockets);
  if (sockets) return Error::refusal(EPERM, "pod with a volume sockets is a launcher pod");
  if (sockets.error().code == ENOENT) return ok();
  return sockets.error();
}

Result<PodState> pod_state(int pods_dir, const PodUid& pod) {
  PodState state;
  auto sockets = open_volume(pods_dir, pod, PodVolume::kSockets);
  if (sockets) {
    state.directory = true;
    state.launcher_socket = socket_state(sockets->get());
    auto marker = stat_entry(sockets->get(), kUnresponsiveMarker, kUnresponsiveMarker);
    if (!marker) return marker.error();
    state.unresponsive_marker = marker->has_value();
  } else if (!is_missing(sockets.error())) {
    state.launcher_socket = EntryState::kRefused;
  }
  auto disks = open_volume(pods_dir, pod, PodVolume::kContainerDisks);
  if (disks) {
    auto indexes = container_disks(disks->get());
    if (!indexes) return indexes.error();
    state.container_disks = std::move(*indexes);
    auto kernel = stat_entry(disks->get(), kKernelBootSocket, kKernelBootSocket);
    if (!kernel) return kernel.error();
    state.kernel_boot = *kernel && S_ISSOCK((*kernel)->st_mode);
  } else if (!is_missing(disks.error())) {
    return disks.error();
  }
  auto binary = walk(pods_dir, pod.text() + "/containers/container-disk-binary", O_PATH | O_DIRECTORY, kNoLinks,
                     "container-disk-binary");
  if (!binary && !is_missing(binary.error())) return binary.error();
  state.container_disk_binary = static_cast<bool>(binary);
  return state;
}

}  // namespace privsep
