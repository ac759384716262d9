#include "device_cgroup.h"

#include <fcntl.h>

#include <algorithm>
#include <optional>

#include "cgroup.h"
#include "proc_file.h"
#include "walk.h"

namespace privsep {

namespace {

constexpr size_t kMaxProcFile = 64 * 1024;

bool has_controller(std::string_view list, std::string_view controller) {
  while (!list.empty()) {
    size_t comma = std::min(list.find(','), list.size());
    if (list.substr(0, comma) == controller) return true;
    list.remove_prefix(std::min(comma + 1, list.size()));
  }
  return false;
}

// The line "hierarchy-ID:controller-list:cgroup-path" of the hierarchy, whole; nothing when there is none.
std::optional<std::string_view> find_line(std::string_view cgroup_file, CgroupVersion version) {
  while (!cgroup_file.empty()) {
    size_t end = std::min(cgroup_file.find('\n'), cgroup_file.size());
    std::string_view line = cgroup_file.substr(0, end);
    cgroup_file.remove_prefix(std::min(end + 1, cgroup_file.size()));
    size_t first = line.find(':');
    size_t second = first == std::string_view::npos ? first : line.find(':', first + 1);
    if (second == std::string_view::npos) continue;
    std::string_view controllers = line.substr(first + 1, second - first - 1);
    bool found = version == CgroupVersion::kV2 ? controllers.empty() : has_controller(controllers, "devices");
    if (found) return line;
  }
  return std::nullopt;
}

bool ends_with(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

}  // namespace

Result<std::vector<std::string>> device_cgroup_paths(std::string_view cgroup_file, CgroupVersion version,
                                                     std::string_view pod_uid) {
  auto line = find_line(cgroup_file, version);
  if (!line) return Error::of(ENOENT, "find the hierarchy of devices");
  if (!cgroup_is_in_pod(*line, pod_uid)) return Error::refusal(EPERM, "cgroup of devices");
  std::string_view path = line->substr(line->find(':', line->find(':') + 1) + 1);
  if (path.empty() || path.front() != '/') return Error::refusal(EINVAL, "path of cgroup");
  path.remove_prefix(1);
  if (path.substr(0, 2) == "..") return Error::refusal(EXDEV, "cgroup namespace of the helper");
  constexpr std::string_view housekeeping = "/housekeeping";
  if (ends_with(path, housekeeping)) path.remove_suffix(housekeeping.size());
  std::vector<std::string> paths{std::string(path)};
  constexpr std::string_view container = "/container";
  if (version == CgroupVersion::kV2 && ends_with(path, container)) {
    std::string_view parent = path.substr(0, path.size() - container.size());
    if (ends_with(parent, ".scope")) paths.emplace_back(parent);
  }
  return paths;
}

Result<std::vector<Fd>> open_device_cgroups(const DeviceHierarchy& hierarchy, const Launcher& launcher,
                                            const PodUid& pod) {
  auto pid = pid_of(launcher.pidfd.get());
  if (!pid) return pid.error();
  auto text = read_proc_file("/proc/" + std::to_string(*pid) + "/cgroup", kMaxProcFile);
  if (!text) return text.error();
  auto paths = device_cgroup_paths(*text, hierarchy.version, pod.text());
  if (!paths) return paths.error();
  std::vector<Fd> cgroups;
  for (const std::string& path : *paths) {
    auto cgroup = walk(hierarchy.root.get(), path, O_PATH | O_DIRECTORY, kOneMount, "cgroup of launcher");
    if (!cgroup) return cgroup.error();
    cgroups.push_back(std::move(*cgroup));
  }
  // Still alive: so the number meant this process when the text was read.
  auto checked = check_process(launcher.pidfd.get(), pod, "launcher");
  if (!checked) return checked.error();
  return cgroups;
}

}  // namespace privsep
