#include "walk.h"

#include <dirent.h>
#include <fcntl.h>

#include <memory>

namespace privsep {

namespace {

// openat2 answers EAGAIN when a rename races with `..`; the caller is asked to try again.
constexpr int kRaceRetries = 16;
constexpr size_t kMaxComponents = 16;
constexpr size_t kMaxPath = 4095;

struct CloseDir {
  void operator()(DIR* dir) const { ::closedir(dir); }
};

}  // namespace

bool is_entry_name(std::string_view name) {
  return !name.empty() && name.size() <= 255 && name != "." && name != ".." &&
         name.find('/') == std::string_view::npos && name.find('\0') == std::string_view::npos;
}

Result<std::string> join_components(const std::vector<std::string>& components) {
  if (components.size() > kMaxComponents) return Error::refusal(EINVAL, "path: too many components");
  std::string path;
  for (const std::string& component : components) {
    if (!is_entry_name(component)) return Error::refusal(EINVAL, "path: not an entry name");
    if (!path.empty()) path += '/';
    path += component;
  }
  return path.empty() ? std::string(".") : path;
}

Result<Fd> walk(int dirfd, const std::string& path, int flags, uint64_t resolve, const std::string& what,
                mode_t mode) {
  if (path.empty() || path.size() > kMaxPath || path.find('\0') != std::string::npos) {
    return Error::refusal(EINVAL, "path of " + what);
  }
  open_how how{};
  how.flags = static_cast<uint64_t>(flags) | O_CLOEXEC;
  how.mode = mode;
  how.resolve = resolve;
  for (int attempt = 0;; ++attempt) {
    int fd = kernel::openat2(dirfd, path.c_str(), &how);
    if (fd >= 0) return Fd(fd);
    if ((errno == EAGAIN || errno == EINTR) && attempt < kRaceRetries) continue;
    Error error = Error::last("openat2 " + what);
    error.refused = error.code == ELOOP || error.code == EXDEV;
    return error;
  }
}

Result<struct stat> stat_fd(int fd, const std::string& what) {
  struct stat st {};
  if (::fstat(fd, &st) != 0) return Error::last("fstat " + what);
  return st;
}

Result<std::optional<struct stat>> stat_entry(int dirfd, const std::string& name, const std::string& what) {
  struct stat st {};
  if (::fstatat(dirfd, name.c_str(), &st, AT_SYMLINK_NOFOLLOW) == 0) return std::optional<struct stat>(st);
  if (errno == ENOENT) return std::optional<struct stat>();
  return Error::last("fstatat " + what);
}

Result<std::vector<std::string>> first_entries(int dirfd, size_t limit, const std::string& what) {
  // The stream closes its descriptor and shares the offset, so it gets one of its own.
  Fd own(::openat(dirfd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!own.valid()) return Error::last("openat " + what);
  std::unique_ptr<DIR, CloseDir> dir(::fdopendir(own.get()));
  if (!dir) return Error::last("fdopendir " + what);
  own.release();
  std::vector<std::string> names;
  while (names.size() < limit) {
    errno = 0;
    const dirent* entry = ::readdir(dir.get());
    if (entry == nullptr) {
      if (errno != 0) return Error::last("readdir " + what);
      break;
    }
    std::string_view name(entry->d_name);
    if (name != "." && name != "..") names.emplace_back(name);
  }
  return names;
}

Result<std::vector<std::string>> read_directory(int dirfd, size_t limit, const std::string& what) {
  auto names = first_entries(dirfd, limit + 1, what);
  if (names && names->size() > limit) return Error::of(E2BIG, "readdir " + what);
  return names;
}

bool same_inode(const struct stat& a, const struct stat& b) {
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

std::string fd_path(int fd) { return "/proc/self/fd/" + std::to_string(fd); }

}  // namespace privsep
