#include "cgroup.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "pod.h"
#include "walk.h"

namespace privsep {

namespace {

constexpr size_t kUidLength = 36;

// One line of proc_pid_cgroup(5): hierarchy-ID:controller-list:cgroup-path
struct Line {
  std::string_view controllers;  // comma separated, empty for v2
  std::string_view path;
};

// The next line that is one; takes it off the text.
std::optional<Line> next_line(std::string_view* text) {
  while (!text->empty()) {
    size_t end = std::min(text->find('\n'), text->size());
    std::string_view line = text->substr(0, end);
    text->remove_prefix(std::min(end + 1, text->size()));
    size_t first = line.find(':');
    size_t second = first == line.npos ? first : line.find(':', first + 1);
    if (second == line.npos) continue;
    return Line{line.substr(first + 1, second - first - 1), line.substr(second + 1)};
  }
  return std::nullopt;
}

bool has_word(std::string_view list, std::string_view word) {
  while (!list.empty()) {
    size_t comma = std::min(list.find(','), list.size());
    if (list.substr(0, comma) == word) return true;
    list.remove_prefix(std::min(comma + 1, list.size()));
  }
  return false;
}

// The line of the v1 hierarchy with the controller, of v2 for the empty one.
std::optional<Line> find_line(std::string_view cgroup_file, std::string_view controller) {
  while (auto line = next_line(&cgroup_file)) {
    if (controller.empty() ? line->controllers.empty() : has_word(line->controllers, controller)) return line;
  }
  return std::nullopt;
}

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
  while (auto line = next_line(&cgroup_file)) {
    std::string uid = pod_of_path(line->path);
    if (uid.empty()) continue;
    if (uid != pod_uid) return false;
    found = true;
  }
  return found;
}

bool has_hierarchy(std::string_view cgroup_file, std::string_view controller) {
  return find_line(cgroup_file, controller).has_value();
}

Result<std::string> container_cgroup(std::string_view cgroup_file, std::string_view controller,
                                     std::string_view pod_uid) {
  const std::string what = "cgroup of the launcher for " + (controller.empty() ? "v2" : std::string(controller));
  auto line = find_line(cgroup_file, controller);
  if (!line) return Error::of(ENOENT, what);
  if (pod_of_path(line->path) != pod_uid) return Error::refusal(EPERM, what);
  std::vector<std::string> components;
  std::string_view rest = line->path;
  while (!rest.empty()) {
    size_t slash = std::min(rest.find('/'), rest.size());
    if (slash > 0) components.emplace_back(rest.substr(0, slash));
    rest.remove_prefix(std::min(slash + 1, rest.size()));
  }
  if (components.front() == "..") return Error::refusal(EXDEV, what + ": cgroup namespace of the helper");
  if (components.back() == kHousekeeping) components.pop_back();
  return join_components(components);
}

}  // namespace privsep
