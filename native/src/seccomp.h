// System call filters. A filter only ever gets stricter and cannot be taken off.
#pragma once

#include <linux/filter.h>

#include <vector>

#include "result.h"

namespace privsep {

enum class FilterProfile {
  // Privileged threads: only the calls that their operations use.
  kPrivileged,
  // The same where SELinux is active: they also make short processes (short_process.h), which have the same filter.
  kPrivilegedWithProcesses,
  // All other threads of the helper: no privileged calls, no new programs or processes, and no socket of any
  // family but unix.
  kHelper,
  // Every thread of the agent: the same, with the network.
  kAgent,
};

std::vector<sock_filter> build_filter(FilterProfile profile);

// Sets no_new_privs and installs the filter for the calling thread. Async-signal-safe; returns 0 or errno.
int install_filter(const std::vector<sock_filter>& filter);

}  // namespace privsep
