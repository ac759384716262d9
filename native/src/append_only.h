// The append-only flag of a file, chattr(1) +a.
#pragma once

#include "result.h"

namespace privsep {

// Sets or clears the flag of a regular file that the calling user owns; takes CAP_LINUX_IMMUTABLE. False when the
// file system has no such flag.
Result<bool> set_append_only(int fd, bool on);

}  // namespace privsep
