// The network sysctls as the helper's own mounts show them.
#pragma once

#include "result.h"

namespace privsep {

// Container runtimes and service managers mount /proc/sys read-only. Where /proc/sys/net is, this mounts a
// writable view of it over itself, in the mount namespace of the process; nothing else of /proc/sys changes.
// Which network namespace a sysctl belongs to is decided by the thread that opens it. Needs CAP_SYS_ADMIN.
Status make_network_sysctls_writable();

}  // namespace privsep
