#include "mounts.h"

#include <fcntl.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include "walk.h"

namespace privsep {

namespace {

constexpr uint64_t kAttributes = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC |
                                 MOUNT_ATTR_NOSYMFOLLOW;
// Volumes and kernel file systems of the container are not part of its image.
constexpr uint64_t kInImage = kInRoot | RESOLVE_NO_XDEV;
constexpr size_t kMaxImagePath = 4095;
constexpr size_t kMaxEntries = 4096;
constexpr int kMaxStackedMounts = 8;
// /var/run is a link in launcher images, hence resolved inside the root and compared by inode.
constexpr const char* kDisksInLauncher = "var/run/kubevirt/container-disks";

// Whatever happens, the thread is home again before the next step.
class Journey {
 public:
  explicit Journey(Home& home) : home_(home) {}
  ~Journey() { (void)home_.come_back(); }  // the pool checks again and gives the thread up
  Journey(const Journey&) = delete;
  Journey& operator=(const Journey&) = delete;
  Status end() { return home_.come_back(); }

 private:
  Home& home_;
};

Result<Fd> open_root() {
  Fd root(::open("/", O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!root.valid()) return Error::last("open root of the container");
  return root;
}

// The only file of /disk.
Result<Fd> open_only_image(int root) {
  auto directory = walk(root, "disk", O_PATH | O_DIRECTORY, kInImage, "/disk of the image");
  if (!directory) return directory.error();
  auto names = read_directory(directory->get(), 2, "/disk of the image");
  if (!names && names.error().code != E2BIG) return names.error();
  if (!names || names->size() > 1) {
    return Error::refusal(E2BIG, "more than one file found in folder /disk, only one disk is allowed");
  }
  if (names->empty()) return Error::refusal(ENOENT, "no file found in folder /disk, no disk present");
  // Resolved from the root, so that a link may lead anywhere in the image.
  return walk(root, "disk/" + (*names)[0], O_PATH, kInImage, "image in /disk");
}

// The namespace of the process that listens on a container's socket, which must be of the launcher's pod and not in
// the launcher's own.
Result<Fd> mount_namespace_of_image(int volume, const std::string& socket_name, const PodUid& pod,
                                    const Launcher& launcher, const Deadline& deadline) {
  auto member = check_process(launcher.pidfd.get(), pod, "launcher");
  if (!member) return member.error();
  auto socket = open_socket(volume, socket_name);
  if (!socket) return socket.error();
  auto disk = connect_peer(socket->get(), deadline, socket_name);
  if (!disk) return disk.error();
  auto same_pod = check_process(disk->pidfd.get(), pod, "container-disk process");
  if (!same_pod) return same_pod.error();
  auto mntns = mount_namespace_of(disk->pidfd.get());
  if (!mntns) return mntns.error();
  auto id = stat_fd(mntns->get(), "mount namespace of container disk");
  if (!id) return id.error();
  auto launcher_id = stat_fd(launcher.mntns.get(), "mount namespace of launcher");
  if (!launcher_id) return launcher_id.error();
  if (same_inode(*id, *launcher_id)) {
    return Error::refusal(EPERM, "container-disk process is in the launcher's mount namespace");
  }
  return mntns;
}

// A detached, truly read-only clone of the image. Made inside the image's namespace: the kernel refuses to
// clone a mount of another one.
Result<Fd> clone_image(const std::string& image_path, struct stat* image) {
  auto root = open_root();
  if (!root) return root.error();
  auto source = image_path.empty() ? open_only_image(root->get())
                                   : walk(root->get(), image_path, O_PATH, kInImage, "image");
  if (!source) return source.error();
  auto st = stat_fd(source->get(), "image");
  if (!st) return st.error();
  if (!S_ISREG(st->st_mode)) return Error::refusal(EINVAL, "image is not a regular file");
  *image = *st;
  Fd tree(::open_tree(source->get(), "", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH));
  if (!tree.valid()) return Error::last("open_tree image");
  mount_attr attributes{};
  attributes.attr_set = kAttributes;
  attributes.propagation = MS_PRIVATE;
  if (::mount_setattr(tree.get(), "", AT_EMPTY_PATH, &attributes, sizeof attributes) != 0) {
    return Error::last("mount_setattr image");
  }
  return tree;
}

Result<bool> is_mount_root(int fd, const std::string& what) {
  struct statx st {};
  if (::statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &st) != 0) return Error::last("statx " + what);
  if ((st.stx_attributes_mask & STATX_ATTR_MOUNT_ROOT) == 0) return Error::of(ENOTSUP, "statx mount root " + what);
  return (st.stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0;
}

// The volume as the calling thread's namespace shows it; must be that of the pod.
Result<Fd> open_disks_in_launcher(const struct stat& volume) {
  auto root = open_root();
  if (!root) return root.error();
  auto directory = walk(root->get(), kDisksInLauncher, O_PATH | O_DIRECTORY, kInRoot, "container-disks of launcher");
  if (!directory) return directory.error();
  auto st = stat_fd(directory->get(), "container-disks of launcher");
  if (!st) return st.error();
  if (!same_inode(*st, volume)) return Error::refusal(EPERM, "container-disks of launcher is not the pod's volume");
  return directory;
}

// With the lock held and in the launcher's namespace.
Result<bool> attach(int tree, int directory, const std::string& name, const struct stat& image) {
  auto made = walk(directory, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, kNoLinks, name, 0644);
  if (!made && made.error().code != EEXIST) return made.error();
  auto fail = [&](Error error) {
    if (made) error.unchanged = ::unlinkat(directory, name.c_str(), 0) == 0;
    return error;
  };
  auto target = walk(directory, name, O_PATH, kNoLinks, name);
  if (!target) return fail(target.error());
  auto mounted = is_mount_root(target->get(), name);
  if (!mounted) return fail(mounted.error());
  auto st = stat_fd(target->get(), name);
  if (!st) return fail(st.error());
  if (*mounted) {
    if (same_inode(*st, image)) return false;
    return Error::refusal(EPERM, "what is mounted on " + name + " is not the image");
  }
  if (!S_ISREG(st->st_mode)) return fail(Error::refusal(EINVAL, "mount point " + name + " is not a regular file"));
  if (::move_mount(tree, "", target->get(), "", MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH) != 0) {
    return fail(Error::last("move_mount " + name));
  }
  // The old descriptor denotes the covered file.
  auto now = walk(directory, name, O_PATH, kNoLinks, name);
  auto found = now ? stat_fd(now->get(), name) : Result<struct stat>(now.error());
  if (!found || !same_inode(*found, image)) {
    Error error = found ? Error::refusal(EPERM, "identity of mounted " + name) : found.error();
    error.unchanged = false;
    return error;
  }
  return true;
}

// Takes every mount off the entry. The thread's working directory becomes `directory`.
Result<bool> unmount_entry(int directory, const std::string& name) {
  if (::fchdir(directory) != 0) return Error::last("fchdir container-disks");
  bool changed = false;
  for (int i = 0; i <= kMaxStackedMounts; ++i) {
    auto mounted = false;
    {
      auto entry = walk(directory, name, O_PATH, kNoLinks, name);
      if (!entry) {
        // Gone, or a link, which cannot be mounted on.
        if (entry.error().code == ENOENT || entry.error().code == ELOOP) return changed;
        return entry.error();
      }
      auto root = is_mount_root(entry->get(), name);
      if (!root) return root.error();
      mounted = *root;
    }
    if (!mounted) return changed;
    if (i == kMaxStackedMounts) break;
    // Only a path will do, and no path leads here but the name in the working directory.
    if (::umount2(name.c_str(), MNT_DETACH | UMOUNT_NOFOLLOW) != 0) {
      Error error = Error::last("umount2 " + name);
      error.unchanged = !changed;
      return error;
    }
    changed = true;
  }
  Error error = Error::of(ELOOP, "too many mounts on " + name);
  error.unchanged = false;
  return error;
}

Result<std::vector<std::string>> disk_entries(int directory) {
  auto names = read_directory(directory, kMaxEntries, "container-disks");
  if (!names) return names.error();
  std::vector<std::string> disks;
  for (const std::string& name : *names) {
    if (parse_disk_name(name, ".img") >= 0 || parse_disk_name(name, ".sock") >= 0) disks.push_back(name);
  }
  return disks;
}

Result<bool> unmount_images(int directory, const std::vector<std::string>& names) {
  bool changed = false;
  for (const std::string& name : names) {
    if (parse_disk_name(name, ".img") < 0) continue;
    auto unmounted = unmount_entry(directory, name);
    if (!unmounted) {
      Error error = unmounted.error();
      error.unchanged = error.unchanged && !changed;
      return error;
    }
    changed = changed || *unmounted;
  }
  return changed;
}

}  // namespace

Result<bool> mount_container_disk(Home& home, MountLock& lock, int pods_dir, const PodUid& pod,
                                  const Launcher& launcher, int index, const std::string& image_path,
                                  const Deadline& deadline) {
  if (index < 0 || index > kMaxDiskIndex) return Error::refusal(EINVAL, "volume index");
  if (image_path.size() > kMaxImagePath) return Error::refusal(ENAMETOOLONG, "image path");
  const std::string socket_name = disk_name(index, ".sock");
  auto volume = open_volume(pods_dir, pod, PodVolume::kContainerDisks);
  if (!volume) return volume.error();
  auto volume_id = stat_fd(volume->get(), "container-disks");
  if (!volume_id) return volume_id.error();
  auto disk_mntns = mount_namespace_of_image(volume->get(), socket_name, pod, launcher, deadline);
  if (!disk_mntns) return disk_mntns.error();

  Journey journey(home);
  auto inside = home.enter_mount(disk_mntns->get());
  if (!inside) return inside.error();
  struct stat image {};
  auto tree = clone_image(image_path, &image);
  if (!tree) return tree.error();
  if (deadline.passed()) return Error::of(ETIMEDOUT, "mount " + socket_name);

  inside = home.enter_mount(launcher.mntns.get());
  if (!inside) return inside.error();
  auto directory = open_disks_in_launcher(*volume_id);
  if (!directory) return directory.error();
  std::lock_guard<std::mutex> guard(lock);
  return attach(tree->get(), directory->get(), disk_name(index, ".img"), image);
}

Result<Fd> open_container_disk(Home& home, int pods_dir, const PodUid& pod, const Launcher& launcher,
                               std::optional<int> index, const std::string& image_path, const Deadline& deadline) {
  if (index && (*index < 0 || *index > kMaxDiskIndex)) return Error::refusal(EINVAL, "volume index");
  if (!index && image_path.empty()) return Error::refusal(EINVAL, "image path");
  if (image_path.size() > kMaxImagePath) return Error::refusal(ENAMETOOLONG, "image path");
  auto volume = open_volume(pods_dir, pod, PodVolume::kContainerDisks);
  if (!volume) return volume.error();
  const std::string socket_name = index ? disk_name(*index, ".sock") : kKernelBootSocket;
  auto mntns = mount_namespace_of_image(volume->get(), socket_name, pod, launcher, deadline);
  if (!mntns) return mntns.error();

  Journey journey(home);
  auto inside = home.enter_mount(mntns->get());
  if (!inside) return inside.error();
  struct stat image {};
  auto tree = clone_image(image_path, &image);
  if (!tree) return tree.error();
  // The paths of descriptors exist at home only. The type was checked on the very inode that is opened now.
  auto back = journey.end();
  if (!back) return back.error();
  Fd file(::open(fd_path(tree->get()).c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  if (!file.valid()) return Error::last("open image");
  auto st = stat_fd(file.get(), "image");
  if (!st) return st.error();
  if (!same_inode(*st, image)) return Error::refusal(EPERM, "identity of image");
  return file;
}

Result<bool> unmount_container_disks(Home& home, MountLock& lock, int pods_dir, const PodUid& pod,
                                     const Launcher* launcher) {
  auto volume = open_volume(pods_dir, pod, PodVolume::kContainerDisks);
  if (!volume) {
    if (volume.error().code == ENOENT || volume.error().code == ENOTDIR) return false;
    return volume.error();
  }
  auto volume_id = stat_fd(volume->get(), "container-disks");
  if (!volume_id) return volume_id.error();
  auto names = disk_entries(volume->get());
  if (!names) return names.error();

  std::lock_guard<std::mutex> guard(lock);
  Journey journey(home);
  bool changed = false;
  if (launcher != nullptr) {
    auto inside = home.enter_mount(launcher->mntns.get());
    if (!inside) return inside.error();
    auto directory = open_disks_in_launcher(*volume_id);
    if (!directory) return directory.error();
    auto unmounted = unmount_images(directory->get(), *names);
    if (!unmounted) return unmounted.error();
    changed = *unmounted;
    auto back = journey.end();
    if (!back) return back.error();
  }
  // What a handler before us has mounted on the host and let propagate.
  auto unmounted = unmount_images(volume->get(), *names);
  bool left = ::chdir("/") == 0;  // not to keep the volume busy
  Error failure = unmounted ? Error::last("chdir /") : unmounted.error();
  if (!unmounted || !left) {
    failure.unchanged = failure.unchanged && !changed;
    return failure;
  }
  changed = changed || *unmounted;
  for (const std::string& name : *names) {
    if (::unlinkat(volume->get(), name.c_str(), 0) == 0) {
      changed = true;
    } else if (errno != ENOENT) {
      Error error = Error::last("unlinkat " + name);
      error.unchanged = !changed;
      return error;
    }
  }
  return changed;
}

}  // namespace privsep
