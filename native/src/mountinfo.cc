#include "mountinfo.h"

#include <sys/sysmacros.h>

#include <algorithm>
#include <charconv>
#include <string>

namespace privsep {

namespace {

// "major:minor", 0 for anything else.
dev_t parse_device(std::string_view text) {
  unsigned major = 0;
  unsigned minor = 0;
  const char* end = text.data() + text.size();
  auto first = std::from_chars(text.data(), end, major);
  if (first.ec != std::errc() || first.ptr == end || *first.ptr != ':') return 0;
  auto second = std::from_chars(first.ptr + 1, end, minor);
  return second.ec == std::errc() && second.ptr == end ? makedev(major, minor) : 0;
}

std::string_view take_field(std::string_view& line) {
  size_t space = std::min(line.find(' '), line.size());
  std::string_view field = line.substr(0, space);
  line.remove_prefix(std::min(space + 1, line.size()));
  return field;
}

struct Mount {
  std::string_view id;
  std::string_view device;
  std::string_view type;
};

// Takes the first line: id parent major:minor root mountpoint options [optional fields] - type source superoptions
Mount take_mount(std::string_view& mountinfo) {
  size_t end = std::min(mountinfo.find('\n'), mountinfo.size());
  std::string_view line = mountinfo.substr(0, end);
  mountinfo.remove_prefix(std::min(end + 1, mountinfo.size()));
  Mount mount;
  mount.id = take_field(line);
  take_field(line);
  mount.device = take_field(line);
  while (!line.empty() && take_field(line) != "-") {
  }
  mount.type = take_field(line);
  return mount;
}

}  // namespace

dev_t find_filesystem(std::string_view mountinfo, std::string_view type) {
  while (!mountinfo.empty()) {
    Mount mount = take_mount(mountinfo);
    if (mount.type == type) return parse_device(mount.device);
  }
  return 0;
}

std::string_view filesystem_of_mount(std::string_view mountinfo, uint64_t id) {
  const std::string wanted = std::to_string(id);
  while (!mountinfo.empty()) {
    Mount mount = take_mount(mountinfo);
    if (mount.id == wanted) return mount.type;
  }
  return {};
}

}  // namespace privsep
