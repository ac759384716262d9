#include "volume_file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include "walk.h"

namespace privsep {

namespace {

constexpr mode_t kPermissions = 0777;

// True when the entry is a plain file of this content and owner. Anything strange is just "not equal".
bool is_equal(int directory, const std::string& name, const std::string& content, const FileOwner& owner) {
  auto inode = walk(directory, name, O_PATH, kNoLinks, name);
  if (!inode) return false;
  auto st = stat_fd(inode->get(), name);
  if (!st || !S_ISREG(st->st_mode) || st->st_nlink != 1 || st->st_uid != owner.uid || st->st_gid != owner.gid ||
      (st->st_mode & 07777) != owner.mode || static_cast<size_t>(st->st_size) != content.size()) {
    return false;
  }
  Fd file(::open(fd_path(inode->get()).c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (!file.valid()) return false;
  std::string found(content.size() + 1, '\0');
  size_t length = 0;
  while (length < found.size()) {
    ssize_t n = ::read(file.get(), found.data() + length, found.size() - length);
    if (n < 0) return false;
    if (n == 0) break;
    length += static_cast<size_t>(n);
  }
  found.resize(length);
  return found == content;
}

Status fill(int file, const std::string& content, const FileOwner& owner, const std::string& name) {
  for (size_t written = 0; written < content.size();) {
    ssize_t n = ::write(file, content.data() + written, content.size() - written);
    if (n < 0) return Error::last("write " + name);
    written += static_cast<size_t>(n);
  }
  // The mode first: afterwards the file is another user's.
  if (::fchmod(file, owner.mode) != 0) return Error::last("fchmod " + name);
  if (::fchown(file, owner.uid, owner.gid) != 0) return Error::last("fchown " + name);
  if (::fsync(file) != 0) return Error::last("fsync " + name);
  return ok();
}

}  // namespace

Result<WriteOutcome> write_volume_file(int pods_dir, const PodUid& pod, PodVolume volume, const std::string& name,
                                       const std::string& content, const FileOwner& owner) {
  auto valid = check_file_name(name);
  if (!valid) return valid.error();
  if (content.size() > kMaxVolumeFile) return Error::refusal(EFBIG, "content of " + name);
  if ((owner.mode & ~kPermissions) != 0) return Error::refusal(EINVAL, "mode of " + name);
  auto directory = open_volume(pods_dir, pod, volume);
  if (!directory) return directory.error();
  if (is_equal(directory->get(), name, content, owner)) return WriteOutcome::kEqual;
  auto before = stat_entry(directory->get(), name, name);
  if (!before) return before.error();

  // Always the same one: what a killed call left there goes with the next.
  const std::string temporary = "." + name + ".new";
  if (::unlinkat(directory->get(), temporary.c_str(), 0) != 0 && errno != ENOENT)
    return Error::last("unlinkat " + temporary);
  auto file = walk(directory->get(), temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, kNoLinks, name, 0600);
  if (!file) return file.error();
  auto filled = fill(file->get(), content, owner, name);
  if (!filled) {
    Error error = filled.error();
    error.unchanged = ::unlinkat(directory->get(), temporary.c_str(), 0) == 0;
    return error;
  }
  if (::renameat(directory->get(), temporary.c_str(), directory->get(), name.c_str()) != 0) {
    Error error = Error::last("renameat " + name);
    error.unchanged = ::unlinkat(directory->get(), temporary.c_str(), 0) == 0;
    return error;
  }
  // The pod may have put something else in the place of the temporary file just before.
  auto ours = stat_fd(file->get(), name);
  auto entry = stat_entry(directory->get(), name, name);
  if (!ours || !entry || !*entry || !same_inode(*ours, **entry)) {
    Error error = Error::refusal(EAGAIN, "identity of " + name);
    error.unchanged = false;
    return error;
  }
  return *before ? WriteOutcome::kReplaced : WriteOutcome::kCreated;
}

Result<bool> remove_volume_file(int pods_dir, const PodUid& pod, PodVolume volume, const std::string& name) {
  auto valid = check_file_name(name);
  if (!valid) return valid.error();
  auto directory = open_volume(pods_dir, pod, volume);
  if (!directory) return directory.error();
  if (::unlinkat(directory->get(), name.c_str(), 0) == 0) return true;
  if (errno == ENOENT) return false;
  return Error::last("unlinkat " + name);
}

Result<uint64_t> volume_file_size(int pods_dir, const PodUid& pod, const VolumeEntry& entry) {
  auto volume = open_volume(pods_dir, pod, entry.volume);
  if (!volume) return volume.error();
  auto file = walk(volume->get(), entry.path, O_PATH, kOneMount, entry.name);
  if (!file) return file.error();
  auto st = stat_fd(file->get(), entry.name);
  if (!st) return st.error();
  if (!S_ISREG(st->st_mode)) return Error::refusal(EINVAL, "type of " + entry.name);
  return static_cast<uint64_t>(st->st_size);
}

}  // namespace privsep
