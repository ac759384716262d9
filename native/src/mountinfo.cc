#include "mountinfo.h"

#include <sys/sysmacros.h>

#include <algorithm>
#include <charconv>

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

}  // namespace

dev_t find_filesystem(std::string_view mountinfo, std::string_view type) {
  while (!mountinfo.empty()) {
    size_t end = std::min(mountinfo.find('\n'), mountinfo.size());
    std::string_view line = mountinfo.substr(0, end);
    mountinfo.remove_prefix(std::min(end + 1, mountinfo.size()));
    // id parent major:minor root mountpoint options [optional fields] - type source superoptions
    take_field(line);
    take_field(line);
    std::string_view device = take_field(line);
    while (!line.empty() && take_field(line) != "-") {
    }
    if (take_field(line) == type) return parse_device(device);
  }
  return 0;
}

}  // namespace privsep
