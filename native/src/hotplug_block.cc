#include "hotplug_block.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>

#include "device_list.h"
#include "pod_sockets.h"
#include "walk.h"

namespace privsep {

namespace {

constexpr mode_t kPermissions = 0777;

bool is_missing(const Error& error) { return error.code == ENOENT; }

// A file system that is mounted nodev keeps everybody from opening what is made there.
Status check_nodes_work(int directory) {
  struct statfs st {};
  if (::fstatfs(directory, &st) != 0) return Error::last("fstatfs hotplug-disks");
  if ((st.f_flags & ST_NODEV) != 0) return Error::refusal(EACCES, "hotplug-disks is on a file system mounted nodev");
  return ok();
}

// The calling thread's mask is its own (CLONE_FS unshared).
int make_node(int directory, const std::string& name, const BlockDevice& node) {
  mode_t mask = ::umask(0);
  int made = ::mknodat(directory, name.c_str(), S_IFBLK | (node.mode & kPermissions), node.device);
  int error = errno;
  ::umask(mask);
  errno = error;
  return made;
}

// What decides about devices of the attachment's process.
Status read_policy(const DeviceHierarchy& hierarchy, const Peer& peer, const PodUid& attachment,
                   AttachedDevice* found) {
  auto cgroups = open_device_cgroups(hierarchy, peer.pidfd.get(), attachment, "attachment process");
  if (!cgroups) return cgroups.error();
  const int cgroup = cgroups->front().get();
  if (hierarchy.version == CgroupVersion::kV1) {
    auto list = read_device_list(cgroup);
    if (!list) return list.error();
    found->list = std::move(*list);
    return ok();
  }
  auto programs = effective_device_programs(cgroup);
  if (!programs) return programs.error();
  found->programs = std::move(*programs);
  return ok();
}

}  // namespace

Result<std::optional<BlockDevice>> plugged_device(int pods_dir, const PodUid& pod, const std::string& volume) {
  auto valid = check_volume_name(volume);
  if (!valid) return valid.error();
  auto directory = open_volume(pods_dir, pod, PodVolume::kHotplugDisks);
  if (!directory) return directory.error();
  auto entry = walk(directory->get(), volume, O_PATH, kOneMount, volume);
  if (!entry && is_missing(entry.error())) return std::optional<BlockDevice>();
  if (!entry) return entry.error();
  auto st = stat_fd(entry->get(), volume);
  if (!st) return st.error();
  if (!S_ISBLK(st->st_mode)) return Error::refusal(EEXIST, "entry " + volume + " is not a block device");
  return std::optional<BlockDevice>({st->st_rdev, st->st_mode & kPermissions});
}

Result<AttachedDevice> attached_device(const DeviceHierarchy& hierarchy, int pods_dir, const PodUid& attachment,
                                       const std::string& volume, const Deadline& deadline) {
  auto valid = check_volume_name(volume);
  if (!valid) return valid.error();
  AttachedDevice found;
  found.outcome = PlugOutcome::kMissing;
  auto disks = open_volume(pods_dir, attachment, PodVolume::kHotplugDisks);
  if (!disks && is_missing(disks.error())) return found;
  if (!disks) return disks.error();
  auto directory = walk(disks->get(), volume, O_PATH | O_DIRECTORY, kOneMount, "directory of " + volume);
  if (!directory && is_missing(directory.error())) return found;
  if (!directory) return directory.error();
  auto peer = attachment_process(pods_dir, attachment, deadline);
  if (!peer && is_not_listening(peer.error())) {
    found.outcome = PlugOutcome::kNotReady;
    return found;
  }
  if (!peer) return peer.error();
  auto names = read_directory(directory->get(), 1, "directory of " + volume);
  if (!names && names.error().code == E2BIG) return Error::refusal(E2BIG, "more than one device of " + volume);
  if (!names) return names.error();
  if (names->empty()) return Error::of(ENODEV, "device of " + volume);
  auto node = walk(directory->get(), names->front(), O_PATH, kOneMount, "device of " + volume);
  if (!node) return node.error();
  auto st = stat_fd(node->get(), "device of " + volume);
  if (!st) return st.error();
  if (!S_ISBLK(st->st_mode)) return Error::refusal(ENOTBLK, "type of the device of " + volume);
  auto read = read_policy(hierarchy, *peer, attachment, &found);
  if (!read) return read.error();
  found.outcome = PlugOutcome::kPlugged;
  found.node = {st->st_rdev, st->st_mode & kPermissions};
  return found;
}

Result<bool> plug_block(int pods_dir, const PodUid& pod, const std::string& volume, const BlockDevice& node,
                        const PlugOwner& owner) {
  auto valid = check_volume_name(volume);
  if (!valid) return valid.error();
  auto directory = open_volume(pods_dir, pod, PodVolume::kHotplugDisks);
  if (!directory) return directory.error();
  auto usable = check_nodes_work(directory->get());
  if (!usable) return usable.error();
  bool made = make_node(directory->get(), volume, node) == 0;
  if (!made && errno != EEXIST) return Error::last("mknodat " + volume);
  auto fail = [&](Error error) {
    error.unchanged = !made;
    return error;
  };
  // Whatever is there now, the pod may have put it there.
  auto entry = walk(directory->get(), volume, O_PATH, kOneMount, volume);
  if (!entry) return fail(entry.error());
  auto st = stat_fd(entry->get(), volume);
  if (!st) return fail(st.error());
  if (!S_ISBLK(st->st_mode) || st->st_rdev != node.device || st->st_nlink != 1) {
    return fail(Error::refusal(EPERM, "identity of node " + volume));
  }
  if (st->st_uid == owner.uid && st->st_gid == owner.gid) return made;
  if (::fchownat(entry->get(), "", owner.uid, owner.gid, AT_EMPTY_PATH) != 0) {
    return fail(Error::last("fchownat " + volume));
  }
  return true;
}

}  // namespace privsep
