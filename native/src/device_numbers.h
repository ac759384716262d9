// Device numbers that the kernel hands out when a driver is loaded.
#pragma once

#include <optional>
#include <string_view>

#include "result.h"

namespace privsep {

// Minor of a device of major 10 in the text of /proc/misc.
std::optional<unsigned> find_misc_minor(std::string_view misc, std::string_view name);

// Major of a character device in the text of /proc/devices.
std::optional<unsigned> find_character_major(std::string_view devices, std::string_view name);

// Nothing where the driver is not loaded.
struct DeviceNumbers {
  std::optional<unsigned> sev_minor;
  std::optional<unsigned> mshv_minor;
  std::optional<unsigned> vfio_group_major;
};

// Of this kernel. Call it at home: a container's /proc need not be what it seems.
Result<DeviceNumbers> read_device_numbers();

}  // namespace privsep
