#include "image.h"

#include <fcntl.h>
#include <sys/mount.h>

#include "mount_point.h"
#include "walk.h"

namespace privsep {

namespace {

constexpr uint64_t kAttributes = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC |
                                 MOUNT_ATTR_NOSYMFOLLOW;
// Volumes and kernel file systems of the container are not part of its image.
constexpr uint64_t kInImage = kInRoot | RESOLVE_NO_XDEV;

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

Status restrict_mount(int mount, uint64_t propagation) {
  mount_attr attributes{};
  attributes.attr_set = kAttributes;
  attributes.propagation = propagation;
  if (::mount_setattr(mount, "", AT_EMPTY_PATH, &attributes, sizeof attributes) != 0) {
    return Error::last("mount_setattr image");
  }
  return ok();
}

}  // namespace

Status restrict_image(int mount) { return restrict_mount(mount, 0); }

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

Result<Fd> find_image(int root, const std::string& path) {
  if (path.size() > kMaxImagePath) return Error::refusal(ENAMETOOLONG, "image path");
  return path.empty() ? open_only_image(root) : walk(root, path, O_PATH, kInImage, "image");
}

Result<Fd> clone_image(const std::string& path, struct stat* image) {
  auto root = open_root();
  if (!root) return root.error();
  auto source = find_image(root->get(), path);
  if (!source) return source.error();
  auto st = stat_fd(source->get(), "image");
  if (!st) return st.error();
  if (!S_ISREG(st->st_mode)) return Error::refusal(EINVAL, "image is not a regular file");
  *image = *st;
  Fd tree(::open_tree(source->get(), "", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH));
  if (!tree.valid()) return Error::last("open_tree image");
  auto restricted = restrict_mount(tree.get(), MS_PRIVATE);
  if (!restricted) return restricted.error();
  return tree;
}

}  // namespace privsep
