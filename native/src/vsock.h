// The host's listening socket for its guests, vsock(7).
#pragma once

#include <string>

#include "fd.h"
#include "result.h"

namespace privsep {

// Opens and closes the device, which makes the kernel load what carries the host's address. True when that is done;
// false where this process has no such device or the container may not open it: then the kernel has loaded it for the
// first guest, or the address is not there. Anything else that stands there is refused.
Result<bool> touch_vhost_vsock(const std::string& path);

// Listens on port 1 of the host's address, CID 2, non-blocking. The kernel gives the port to one socket at a time.
// Takes CAP_NET_BIND_SERVICE, and CAP_DAC_READ_SEARCH to open the device. Before Linux 7 addresses of vsock are the
// whole machine's, whatever the network namespace.
Result<Fd> listen_vsock();

}  // namespace privsep
