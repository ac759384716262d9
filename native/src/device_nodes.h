// All device nodes of a launcher's /dev.
#pragma once

#include <string>
#include <vector>

#include "launcher.h"
#include "namespaces.h"

namespace privsep {

struct DeviceNode {
  std::string path;  // below /dev
  bool block = false;
  unsigned major = 0;
  unsigned minor = 0;
};

// Nodes in /dev and in its directories, as deep as 8 and no more than 4096 entries (else E2BIG). Directories on which
// something is mounted are left out: what is in /dev/shm and /dev/pts the launcher made. No link is followed.
Result<std::vector<DeviceNode>> list_device_nodes(Home& home, const Launcher& launcher);

}  // namespace privsep
