#include "device_cgroup.h"

#include <fcntl.h>

#include "cgroup.h"
#include "launcher.h"
#include "proc_file.h"
#include "walk.h"

namespace privsep {

namespace {

constexpr size_t kMaxProcFile = 64 * 1024;

bool ends_with(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

}  // namespace

Result<std::vector<std::string>> device_cgroup_paths(std::string_view cgroup_file, CgroupVersion version,
                                                     std::string_view pod_uid) {
  auto path = container_cgroup(cgroup_file, version == CgroupVersion::kV2 ? "" : "devices", pod_uid);
  if (!path) return path.error();
  std::vector<std::string> paths{*path};
  constexpr std::string_view container = "/container";
  if (version == CgroupVersion::kV2 && ends_with(*path, container)) {
    std::string_view parent = std::string_view(*path).substr(0, path->size() - container.size());
    if (ends_with(parent, ".scope")) paths.emplace_back(parent);
  }
  return paths;
}

Result<std::vector<Fd>> open_device_cgroups(const DeviceHierarchy& hierarchy, int pidfd, const PodUid& pod,
                                            const std::string& what) {
  auto pid = pid_of(pidfd);
  if (!pid) return pid.error();
  auto text = read_proc_file("/proc/" + std::to_string(*pid) + "/cgroup", kMaxProcFile);
  if (!text) return text.error();
  auto paths = device_cgroup_paths(*text, hierarchy.version, pod.text());
  if (!paths) return paths.error();
  std::vector<Fd> cgroups;
  for (const std::string& path : *paths) {
    auto cgroup = walk(hierarchy.root.get(), path, O_PATH | O_DIRECTORY, kOneMount, "cgroup of " + what);
    if (!cgroup) return cgroup.error();
    cgroups.push_back(std::move(*cgroup));
  }
  // Still alive: so the number meant this process when the text was read.
  auto checked = check_process(pidfd, pod, what);
  if (!checked) return checked.error();
  return cgroups;
}

}  // namespace privsep
