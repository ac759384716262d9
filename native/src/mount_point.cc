#include "mount_point.h"

#include <fcntl.h>
#include <sys/mount.h>

#include "walk.h"

namespace privsep {

namespace {

constexpr int kMaxStackedMounts = 8;

// False when the entry exists.
Result<bool> make_mount_point(int directory, const std::string& name, bool is_directory, mode_t mode) {
  if (is_directory) {
    if (::mkdirat(directory, name.c_str(), mode) == 0) return true;
    if (errno == EEXIST) return false;
    return Error::last("mkdirat " + name);
  }
  auto made = walk(directory, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, kNoLinks, name, mode);
  if (made) return true;
  if (made.error().code == EEXIST) return false;
  return made.error();
}

}  // namespace

Result<Fd> open_root() {
  Fd root(::open("/", O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!root.valid()) return Error::last("open root of the container");
  return root;
}

Result<Fd> open_in_launcher(PodVolume volume, const struct stat& id) {
  const std::string what = std::string(volume_name(volume)) + " of launcher";
  auto root = open_root();
  if (!root) return root.error();
  // /var/run is a link in launcher images, hence resolved inside the root and compared by inode.
  auto directory = walk(root->get(), std::string("var/run/kubevirt/") + volume_name(volume), O_PATH | O_DIRECTORY,
                        kInRoot, what);
  if (!directory) return directory.error();
  auto st = stat_fd(directory->get(), what);
  if (!st) return st.error();
  if (!same_inode(*st, id)) return Error::refusal(EPERM, what + " is not the pod's volume");
  return directory;
}

Result<std::optional<Fd>> find_in_launcher(PodVolume volume, const struct stat& id) {
  auto directory = open_in_launcher(volume, id);
  if (directory) return std::optional<Fd>(std::move(*directory));
  if (directory.error().code == ENOENT) return std::optional<Fd>();
  return directory.error();
}

Result<Entry> look_at(int entry, const std::string& what) {
  struct statx st {};
  if (::statx(entry, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE, &st) != 0) return Error::last("statx " + what);
  if ((st.stx_attributes_mask & STATX_ATTR_MOUNT_ROOT) == 0) return Error::of(ENOTSUP, "statx mount root " + what);
  return Entry{(st.stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0, static_cast<mode_t>(st.stx_mode & S_IFMT)};
}

Result<bool> attach_mount(int tree, int directory, const std::string& name, const struct stat& source, mode_t mode) {
  const bool is_directory = S_ISDIR(source.st_mode);
  auto made = make_mount_point(directory, name, is_directory, mode);
  if (!made) return made.error();
  auto fail = [&](Error error) {
    if (*made) error.unchanged = ::unlinkat(directory, name.c_str(), is_directory ? AT_REMOVEDIR : 0) == 0;
    return error;
  };
  auto target = walk(directory, name, O_PATH, kNoLinks, name);
  if (!target) return fail(target.error());
  auto entry = look_at(target->get(), name);
  if (!entry) return fail(entry.error());
  if (entry->mounted) {
    auto st = stat_fd(target->get(), name);
    if (!st) return fail(st.error());
    if (same_inode(*st, source)) return false;
    return Error::refusal(EPERM, "what is mounted on " + name + " is not what belongs there");
  }
  if (entry->type != (source.st_mode & S_IFMT)) {
    return fail(Error::refusal(EINVAL, "type of mount point " + name));
  }
  if (::move_mount(tree, "", target->get(), "", MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH) != 0) {
    return fail(Error::last("move_mount " + name));
  }
  // The old descriptor denotes the covered file.
  auto now = walk(directory, name, O_PATH, kNoLinks, name);
  auto found = now ? stat_fd(now->get(), name) : Result<struct stat>(now.error());
  if (!found || !same_inode(*found, source)) {
    Error error = found ? Error::refusal(EPERM, "identity of mounted " + name) : found.error();
    error.unchanged = false;
    return error;
  }
  return true;
}

Result<bool> unmount_entry(int directory, const std::string& name) {
  if (::fchdir(directory) != 0) return Error::last("fchdir of mount point");
  auto fail = [&](Error error, bool changed) {
    error.unchanged = !changed;
    return error;
  };
  for (int count = 0; count <= kMaxStackedMounts; ++count) {
    // Only a path will do, and no path leads here but the name in the working directory. Of what is mounted nothing is
    // asked: neither is it opened nor looked at.
    if (::umount2(name.c_str(), MNT_DETACH | UMOUNT_NOFOLLOW) == 0) continue;
    // Gone, or nothing is mounted there; on a link nothing can be.
    if (errno == ENOENT || errno == EINVAL) return count > 0;
    return fail(Error::last("umount2 " + name), count > 0);
  }
  return fail(Error::of(ELOOP, "too many mounts on " + name), true);
}

}  // namespace privsep
