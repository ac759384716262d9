// Walking directories by openat2(2), so that nothing outside the start can be reached.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fd.h"
#include "kernel.h"
#include "result.h"

namespace privsep {

// Below the start, no links of any kind.
inline constexpr uint64_t kNoLinks = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS;
// And no mounts: what is found is on the file system of the start.
inline constexpr uint64_t kOneMount = kNoLinks | RESOLVE_NO_XDEV;
// As if the start were the root: links are followed inside it, `..` stops at it.
inline constexpr uint64_t kInRoot = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS;

// True for a name that denotes an entry of a directory: 1 to 255 bytes, no '/', no NUL, not "." or "..".
bool is_entry_name(std::string_view name);

// "a/b/c" of at most 16 entry names; "." for none. EINVAL for anything else.
Result<std::string> join_components(const std::vector<std::string>& components);

// openat2(2) with O_CLOEXEC. A link or a way out of the start is a refusal (ELOOP, EXDEV).
// `what` names the object in errors.
Result<Fd> walk(int dirfd, const std::string& path, int flags, uint64_t resolve, const std::string& what,
                mode_t mode = 0);

Result<struct stat> stat_fd(int fd, const std::string& what);

// The directory's own entry, link or not; nothing when there is none.
Result<std::optional<struct stat>> stat_entry(int dirfd, const std::string& name, const std::string& what);

// Names in a directory (O_PATH will do), "." and ".." left out. More than `limit` give E2BIG.
Result<std::vector<std::string>> read_directory(int dirfd, size_t limit, const std::string& what);

// The same, but at most `limit` of them, in the order of the directory.
Result<std::vector<std::string>> first_entries(int dirfd, size_t limit, const std::string& what);

bool same_inode(const struct stat& a, const struct stat& b);

// "/proc/self/fd/<fd>": reaches the inode of an O_PATH descriptor where only a path is taken.
std::string fd_path(int fd);

}  // namespace privsep
