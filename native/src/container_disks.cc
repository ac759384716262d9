#include "container_disks.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "image.h"
#include "walk.h"

namespace privsep {

namespace {

constexpr size_t kMaxArtifacts = 4096;
constexpr mode_t kDiskMode = 0644;
constexpr mode_t kArtifactMode = 0655;
constexpr mode_t kDirectoryMode = 0755;

// Images that are cloned before they are attached: as many descriptors, and one visit to the launcher's namespace.
constexpr size_t kMaxClones = 16;

// A detached clone of an image.
struct Clone {
  Fd tree;
  struct stat image {};
};

// Made in the namespace of the process that listens on the container's socket now.
Result<Clone> clone_from_container(Home& home, int volume, const PodUid& pod, const Launcher& launcher,
                                   std::optional<int> index, const std::string& image_path, const Deadline& deadline) {
  if (!index && image_path.empty()) return Error::refusal(EINVAL, "image path");
  auto socket_name = image_socket_name(index);
  if (!socket_name) return socket_name.error();
  auto mntns = mount_namespace_of_image(volume, *socket_name, pod, launcher, deadline);
  if (!mntns) return mntns.error();
  Journey journey(home);
  auto inside = home.enter_mount(mntns->get());
  if (!inside) return inside.error();
  Clone clone;
  auto tree = clone_image(image_path, &clone.image);
  if (!tree) return tree.error();
  clone.tree = std::move(*tree);
  auto back = journey.end();
  if (!back) return back.error();
  if (deadline.passed()) return Error::of(ETIMEDOUT, "clone image of " + *socket_name);
  return clone;
}

// A mount that is there already may be of a handler before us, which mounts images writable.
Result<bool> attach_image(int tree, int directory, const std::string& name, const struct stat& image, mode_t mode) {
  auto attached = attach_mount(tree, directory, name, image, mode);
  if (!attached || *attached) return attached;
  auto mounted = walk(directory, name, O_PATH, kNoLinks, name);
  if (!mounted) return mounted.error();
  auto restricted = restrict_image(mounted->get());
  if (!restricted) return restricted.error();
  return false;
}

// Makes the directory unless it is there. One that was made here, by this call or by one that was cut off, is given
// to root; any other stays whose it is.
Result<Fd> open_kernel_boot(int disks, bool* made) {
  *made = ::mkdirat(disks, kKernelBootDirectory, kDirectoryMode) == 0;
  if (!*made && errno != EEXIST) return Error::last("mkdirat kernel-boot");
  auto directory = walk(disks, kKernelBootDirectory, O_RDONLY | O_DIRECTORY, kOneMount, kKernelBootDirectory);
  if (!directory) return directory.error();
  auto st = stat_fd(directory->get(), kKernelBootDirectory);
  if (!st) return st.error();
  if (st->st_uid != ::geteuid()) return directory;
  if (::fchmod(directory->get(), kDirectoryMode) != 0) return Error::last("fchmod kernel-boot");
  if (::fchown(directory->get(), 0, 0) != 0) return Error::last("fchown kernel-boot");
  return directory;
}

Result<bool> attach_artifact(int tree, int disks, const std::string& name, const struct stat& image) {
  bool made = false;
  auto directory = open_kernel_boot(disks, &made);
  auto attached = directory ? attach_image(tree, directory->get(), name, image, kArtifactMode)
                            : Result<bool>(directory.error());
  if (attached || !made) return attached;
  Error error = attached.error();
  error.unchanged = error.unchanged && ::unlinkat(disks, kKernelBootDirectory, AT_REMOVEDIR) == 0;
  return error;
}

Result<bool> attach(const Clone& clone, int disks, const ImageMount& mount) {
  if (!mount.index) return attach_artifact(clone.tree.get(), disks, mount.name, clone.image);
  return attach_image(clone.tree.get(), disks, disk_name(*mount.index, ".img"), clone.image, kDiskMode);
}

// Clones kMaxClones of `images` from the one at `first` on, or those before the first that fails.
Status clone_images(Home& home, int volume, const PodUid& pod, const Launcher& launcher,
                    const std::vector<ImageMount>& images, size_t first, const Deadline& deadline,
                    std::vector<Clone>* clones) {
  const size_t end = std::min(images.size(), first + kMaxClones);
  for (size_t item = first; item < end; ++item) {
    const ImageMount& mount = images[item];
    if (!mount.index && !is_entry_name(mount.name)) return Error::refusal(EINVAL, "name of kernel artifact");
    auto clone = clone_from_container(home, volume, pod, launcher, mount.index, mount.path, deadline);
    if (!clone) return clone.error();
    clones->push_back(std::move(*clone));
  }
  return ok();
}

// Attaches clones of `images` from the one at `*item` on in the launcher's view of the volume. `*item` is the one that
// failed, or the next one.
Status attach_images(Home& home, const Launcher& launcher, const struct stat& volume,
                     const std::vector<ImageMount>& images, const std::vector<Clone>& clones, size_t* item,
                     bool* changed) {
  if (clones.empty()) return ok();
  Journey journey(home);
  auto inside = home.enter_mount(launcher.mntns.get());
  if (!inside) return inside;
  auto disks = open_in_launcher(PodVolume::kContainerDisks, volume);
  if (!disks) return disks.error();
  for (const Clone& clone : clones) {
    auto attached = attach(clone, disks->get(), images[*item]);
    if (!attached) return attached.error();
    *changed = *changed || *attached;
    ++*item;
  }
  return journey.end();
}

// Images and sockets of container disks, and the socket of the kernel-boot container.
struct DiskEntries {
  std::vector<std::string> images;
  std::vector<std::string> sockets;
};

// Asked for by name: a launcher may put any number of other entries beside them.
DiskEntries disk_entries(int disks) {
  auto is_there = [disks](const std::string& name) {
    struct stat st {};
    return ::fstatat(disks, name.c_str(), &st, AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT) == 0 || errno != ENOENT;
  };
  DiskEntries entries;
  for (int index = 0; index <= kMaxDiskIndex; ++index) {
    if (std::string image = disk_name(index, ".img"); is_there(image)) entries.images.push_back(image);
    if (std::string socket = disk_name(index, ".sock"); is_there(socket)) entries.sockets.push_back(socket);
  }
  if (is_there(kKernelBootSocket)) entries.sockets.emplace_back(kKernelBootSocket);
  return entries;
}

// Root alone makes entries in a directory that was made here. In one that the launcher has made, what is beyond the
// limit goes with the pod.
Result<std::vector<std::string>> kernel_artifacts(int kernel_boot) {
  return first_entries(kernel_boot, kMaxArtifacts, kKernelBootDirectory);
}

// The directory kernel-boot; nothing when it is missing or something else.
Result<std::optional<Fd>> find_kernel_boot(int disks) {
  auto directory = walk(disks, kKernelBootDirectory, O_PATH | O_DIRECTORY, kOneMount, kKernelBootDirectory);
  if (directory) return std::optional<Fd>(std::move(*directory));
  int code = directory.error().code;
  if (code == ENOENT || code == ENOTDIR || code == ELOOP) return std::optional<Fd>();
  return directory.error();
}

using Names = std::vector<std::string>;

Status unmount_all(int directory, const Names& names, bool* changed) {
  for (const std::string& name : names) {
    auto unmounted = unmount_entry(directory, name);
    if (!unmounted) return unmounted.error();
    *changed = *changed || *unmounted;
  }
  return ok();
}

// Takes every mount off the mount points that the calling thread's namespace shows in the volume. The thread's
// working directory ends up there.
Status unmount_images(int disks, const Names& images, bool* changed) {
  auto unmounted = unmount_all(disks, images, changed);
  if (!unmounted) return unmounted;
  // A mount over the directory would hide what is in it.
  unmounted = unmount_all(disks, {kKernelBootDirectory}, changed);
  if (!unmounted) return unmounted;
  auto directory = find_kernel_boot(disks);
  if (!directory) return directory.error();
  if (!*directory) return ok();
  auto artifacts = kernel_artifacts((*directory)->get());
  if (!artifacts) return artifacts.error();
  return unmount_all((*directory)->get(), *artifacts, changed);
}

// What cannot be unlinked for what the launcher has made of it goes with the volume.
Status remove_entry(int directory, const std::string& name, int flags, bool* changed) {
  if (::unlinkat(directory, name.c_str(), flags) == 0) {
    *changed = true;
    return ok();
  }
  if (errno == ENOENT || errno == EISDIR || errno == ENOTDIR || errno == ENOTEMPTY) return ok();
  return Error::last("unlinkat " + name);
}

Status remove_all(int directory, const Names& names, bool* changed) {
  for (const std::string& name : names) {
    auto removed = remove_entry(directory, name, 0, changed);
    if (!removed) return removed;
  }
  return ok();
}

// A mount that another mount namespace still has on a mount point goes with the mount point, also the host's that a
// handler before us has made: see unlink in mount_namespaces(7).
Status remove_mount_points(int disks, const Names& images, bool* changed) {
  auto removed = remove_all(disks, images, changed);
  if (!removed) return removed;
  auto directory = find_kernel_boot(disks);
  if (!directory) return directory.error();
  if (!*directory) return ok();
  auto artifacts = kernel_artifacts((*directory)->get());
  if (!artifacts) return artifacts.error();
  removed = remove_all((*directory)->get(), *artifacts, changed);
  if (!removed) return removed;
  return remove_entry(disks, kKernelBootDirectory, AT_REMOVEDIR, changed);
}

Status unmount_in_launcher(Home& home, const Launcher& launcher, const struct stat& volume, const Names& images,
                           bool* changed) {
  Journey journey(home);
  auto inside = home.enter_mount(launcher.mntns.get());
  if (!inside) return inside;
  auto disks = find_in_launcher(PodVolume::kContainerDisks, volume);
  if (!disks) return disks.error();
  auto unmounted = *disks ? unmount_images((*disks)->get(), images, changed) : ok();
  if (!unmounted) return unmounted;
  return journey.end();
}

Status clear_volume(Home& home, int volume, const Launcher* launcher, bool* changed) {
  auto volume_id = stat_fd(volume, "container-disks");
  if (!volume_id) return volume_id.error();
  DiskEntries entries = disk_entries(volume);

  if (launcher != nullptr) {
    auto unmounted = unmount_in_launcher(home, *launcher, *volume_id, entries.images, changed);
    if (!unmounted) return unmounted;
  }
  // What a handler before us has mounted on the host, as it has come here.
  auto unmounted = unmount_images(volume, entries.images, changed);
  if (::chdir("/") != 0) return Error::last("chdir /");  // not to keep the volume busy
  if (!unmounted) return unmounted;
  auto removed = remove_mount_points(volume, entries.images, changed);
  if (!removed) return removed;
  return remove_all(volume, entries.sockets, changed);
}

}  // namespace

Result<bool> mount_container_disks(Home& home, int pods_dir, const PodUid& pod, const Launcher& launcher,
                                   const std::vector<ImageMount>& images, const Deadline& deadline) {
  auto volume = open_volume(pods_dir, pod, PodVolume::kContainerDisks);
  if (!volume) return volume.error();
  auto volume_id = stat_fd(volume->get(), "container-disks");
  if (!volume_id) return volume_id.error();
  bool changed = false;
  size_t done = 0;
  while (done < images.size()) {
    std::vector<Clone> clones;
    auto cloned = clone_images(home, volume->get(), pod, launcher, images, done, deadline, &clones);
    // Those before the one that failed are mounted in any case.
    auto attached = attach_images(home, launcher, *volume_id, images, clones, &done, &changed);
    if (attached && cloned) continue;
    Error error = attached ? cloned.error() : attached.error();
    error.item = static_cast<int>(done);
    error.unchanged = error.unchanged && !changed;
    return error;
  }
  return changed;
}

Result<Fd> open_container_disk(Home& home, int pods_dir, const PodUid& pod, const Launcher& launcher,
                               std::optional<int> index, const std::string& image_path, const Deadline& deadline) {
  auto volume = open_volume(pods_dir, pod, PodVolume::kContainerDisks);
  if (!volume) return volume.error();
  auto clone = clone_from_container(home, volume->get(), pod, launcher, index, image_path, deadline);
  if (!clone) return clone.error();
  // At home again, where descriptors have paths. The type was checked on the very inode that is opened now.
  Fd file(::open(fd_path(clone->tree.get()).c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  if (!file.valid()) return Error::last("open image");
  auto st = stat_fd(file.get(), "image");
  if (!st) return st.error();
  if (!same_inode(*st, clone->image)) return Error::refusal(EPERM, "identity of image");
  return file;
}

Result<bool> unmount_container_disks(Home& home, int pods_dir, const PodUid& pod, const Launcher* launcher) {
  auto volume = open_volume(pods_dir, pod, PodVolume::kContainerDisks);
  if (!volume) {
    if (volume.error().code == ENOENT || volume.error().code == ENOTDIR) return false;
    return volume.error();
  }
  bool changed = false;
  auto cleared = clear_volume(home, volume->get(), launcher, &changed);
  if (cleared) return changed;
  Error error = cleared.error();
  error.unchanged = error.unchanged && !changed;
  return error;
}

}  // namespace privsep
