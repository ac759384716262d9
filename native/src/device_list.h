// Device lists of cgroup v1: files devices.list, devices.allow and devices.deny.
#pragma once

#include <string>
#include <vector>

#include "device_cgroup.h"
#include "result.h"

namespace privsep {

struct DeviceListChange {
  bool allow = false;
  std::string rule;  // "b 8:16 rwm"
};

inline constexpr size_t kMaxListChanges = 8192;

// Text of devices.list.
Result<std::string> read_device_list(int cgroup);

// Writes the rules one after another. Stops at the first that the kernel does not take.
Status change_device_list(int cgroup, const std::vector<DeviceListChange>& changes);

}  // namespace privsep
