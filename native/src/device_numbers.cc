#include "device_numbers.h"

#include <algorithm>
#include <charconv>

#include "proc_file.h"

namespace privsep {

namespace {

constexpr size_t kMaxText = 64 << 10;
constexpr std::string_view kCharacterDevices = "Character devices:";

std::string_view take_line(std::string_view& text) {
  size_t end = std::min(text.find('\n'), text.size());
  std::string_view line = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return line;
}

// The number of "<spaces><number> <name>"; nothing for a line of any other name or form.
std::optional<unsigned> number_of(std::string_view line, std::string_view name) {
  line.remove_prefix(std::min(line.find_first_not_of(' '), line.size()));
  unsigned number = 0;
  auto parsed = std::from_chars(line.data(), line.data() + line.size(), number);
  if (parsed.ec != std::errc()) return std::nullopt;
  line.remove_prefix(static_cast<size_t>(parsed.ptr - line.data()));
  if (line.empty() || line[0] != ' ' || line.substr(1) != name) return std::nullopt;
  return number;
}

}  // namespace

std::optional<unsigned> find_misc_minor(std::string_view misc, std::string_view name) {
  while (!misc.empty()) {
    if (auto minor = number_of(take_line(misc), name)) return minor;
  }
  return std::nullopt;
}

std::optional<unsigned> find_character_major(std::string_view devices, std::string_view name) {
  while (!devices.empty() && take_line(devices) != kCharacterDevices) {
  }
  while (!devices.empty()) {
    std::string_view line = take_line(devices);
    if (line.empty()) return std::nullopt;  // block devices follow
    if (auto major = number_of(line, name)) return major;
  }
  return std::nullopt;
}

Result<DeviceNumbers> read_device_numbers() {
  auto misc = read_proc_file("/proc/misc", kMaxText);
  if (!misc) return misc.error();
  auto devices = read_proc_file("/proc/devices", kMaxText);
  if (!devices) return devices.error();
  DeviceNumbers numbers;
  numbers.sev_minor = find_misc_minor(*misc, "sev");
  numbers.mshv_minor = find_misc_minor(*misc, "mshv");
  numbers.vfio_group_major = find_character_major(*devices, "vfio");
  return numbers;
}

}  // namespace privsep
