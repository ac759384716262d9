#include "cgroup.h"

#include <algorithm>
#include <string>

#include "pod.h"

namespace privsep {

namespace {

constexpr size_t kUidLength = 36;

// The UID that a path component names, empty for none.
std::string pod_of_component(std::string_view component) {
  constexpr std::string_view prefix = "pod";
  constexpr std::string_view slice = ".slice";
  std::string uid;
  if (component.size() == prefix.size() + kUidLength && component.substr(0, prefix.size()) == prefix) {
    uid = component.substr(prefix.size());
  } else if (component.size() >= prefix.size() + kUidLength + slice.size() &&
             component.substr(component.size() - slice.size()) == slice) {
    std::string_view unit = component.substr(0, component.size() - slice.size());
    size_t start = unit.size() - kUidLength - prefix.size();
    if (unit.substr(start, prefix.size()) != prefix || (start > 0 && unit[start - 1] != '-')) return {};
    uid = unit.substr(start + prefix.size());
    if (uid.find('-') != std::string::npos) return {};
    std::replace(uid.begin(), uid.end(), '_', '-');
  }
  return PodUid::parse(uid) ? uid : std::string();
}

// The UID of the outermost pod component of a cgroup path, empty for none.
std::string pod_of_path(std::string_view path) {
  while (!path.empty()) {
    size_t slash = std::min(path.find('/'), path.size());
    std::string uid = pod_of_component(path.substr(0, slash));
    if (!uid.empty()) return uid;
    path.remove_prefix(std::min(slash + 1, path.size()));
  }
  return {};
}

}  // namespace

bool cgroup_is_in_pod(std::string_view cgroup_file, std::string_view pod_uid) {
  bool found = false;
  while (!cgroup_file.empty()) {
    size_t end = std::min(cgroup_file.find('\n'), cgroup_file.size());
    std::string_view line = cgroup_file.substr(0, end);
    cgroup_file.remove_prefix(std::min(end + 1, cgroup_file.size()));
    // hierarchy-ID:controller-list:cgroup-path
    size_t first = line.find(':');
    size_t second = first == std::string_view::npos ? first : line.find(':', first + 1);
    if (second == std::string_view::npos) continue;
    std::string uid = pod_of_path(line.substr(second + 1));
    if (uid.empty()) continue;
    if (uid != pod_uid) return false;
    found = true;
  }
  return found;
}

}  // namespace privsep
