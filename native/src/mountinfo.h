// Reading /proc/<pid>/mountinfo; see proc_pid_mountinfo(5).
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string_view>

namespace privsep {

// st_dev of the first mount of a file system type, 0 when there is none. Lines of another form are skipped.
dev_t find_filesystem(std::string_view mountinfo, std::string_view type);

// File system type of the mount with that id, empty when there is none.
std::string_view filesystem_of_mount(std::string_view mountinfo, uint64_t id);

}  // namespace privsep
