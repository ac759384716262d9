#include "directory.h"

#include <fcntl.h>
#include <sys/inotify.h>

#include "walk.h"

namespace privsep {

Result<std::vector<std::string>> list_directory(int dirfd, const std::vector<std::string>& components,
                                                size_t limit) {
  if (limit == 0 || limit > kMaxListing) return Error::refusal(EINVAL, "limit of directory listing");
  auto path = join_components(components);
  if (!path) return path.error();
  auto directory = walk(dirfd, *path, O_PATH | O_DIRECTORY, kNoLinks, *path);
  if (!directory) return directory.error();
  return read_directory(directory->get(), limit, *path);
}

Result<int> watch_directory(int inotify, int dirfd, const std::vector<std::string>& components, uint32_t mask) {
  if (mask == 0 || (mask & ~static_cast<uint32_t>(IN_ALL_EVENTS)) != 0) {
    return Error::refusal(EINVAL, "mask of inotify watch");
  }
  auto path = join_components(components);
  if (!path) return path.error();
  auto directory = walk(dirfd, *path, O_PATH | O_DIRECTORY, kNoLinks, *path);
  if (!directory) return directory.error();
  int wd = ::inotify_add_watch(inotify, fd_path(directory->get()).c_str(), mask | IN_ONLYDIR);
  if (wd < 0) return Error::last("inotify_add_watch " + *path);
  return wd;
}

}  // namespace privsep
