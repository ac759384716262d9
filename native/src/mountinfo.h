// Reading /proc/<pid>/mountinfo; see proc_pid_mountinfo(5).
#pragma once

#include <sys/types.h>

#include <string_view>

namespace privsep {

// st_dev of the first mount of a file system type, 0 when there is none. Lines of another form are skipped.
dev_t find_filesystem(std::string_view mountinfo, std::string_view type);

}  // namespace privsep
