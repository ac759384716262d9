#include "hotplug.h"

#include <fcntl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <optional>

#include "mountinfo.h"
#include "pod_sockets.h"
#include "volume_owner.h"
#include "walk.h"

namespace privsep {

namespace {

constexpr uint64_t kAttributes = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC | MOUNT_ATTR_NOSYMFOLLOW;
constexpr size_t kMaxEntries = 4096;
constexpr size_t kMaxLabel = 63;
constexpr mode_t kFileMode = 0666;
constexpr mode_t kDirectoryMode = 0750;
constexpr std::string_view kImageSuffix = ".img";
constexpr const char* kImage = "disk.img";
constexpr const char* kHotplugDisks = "hotplug-disks";
constexpr std::string_view kKernelFilesystems[] = {"proc",    "sysfs",      "cgroup", "cgroup2", "devtmpfs", "devpts",
                                                   "debugfs", "securityfs", "mqueue", "tracefs", "bpf"};

bool is_label(std::string_view text) {
  auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); };
  if (text.empty() || text.size() > kMaxLabel || !letter(text.front()) || !letter(text.back())) return false;
  for (char c : text) {
    if (!letter(c) && c != '-') return false;
  }
  return true;
}

std::string plug_name(const std::string& volume, PlugKind kind) {
  return kind == PlugKind::kDisk ? volume + std::string(kImageSuffix) : volume;
}

mode_t type_of(PlugKind kind) { return kind == PlugKind::kDisk ? S_IFREG : S_IFDIR; }

// The pod's volume at home, and its identity.
struct Volume {
  Fd directory;
  struct stat id {};
};

Result<Volume> open_hotplug_disks(int pods_dir, const PodUid& pod) {
  Volume volume;
  auto directory = open_volume(pods_dir, pod, PodVolume::kHotplugDisks);
  if (!directory) return directory.error();
  auto id = stat_fd(directory->get(), kHotplugDisks);
  if (!id) return id.error();
  volume.directory = std::move(*directory);
  volume.id = *id;
  return volume;
}

// What is mounted for the volume; nothing when nothing is.
Result<std::optional<Fd>> find_mounted(int directory, const std::string& name, PlugKind kind) {
  auto entry = walk(directory, name, O_PATH, kNoLinks, name);
  if (!entry && entry.error().code == ENOENT) return std::optional<Fd>();
  if (!entry) return entry.error();
  auto seen = look_at(entry->get(), name);
  if (!seen) return seen.error();
  if (!seen->mounted) return std::optional<Fd>();
  if (seen->type != type_of(kind)) return Error::refusal(EINVAL, "type of what is mounted on " + name);
  return std::optional<Fd>(std::move(*entry));
}

// The namespace of the process that listens in the attachment pod; nothing while nobody does.
Result<std::optional<Fd>> namespace_of_attachment(int pods_dir, const PodUid& attachment, const Launcher& launcher,
                                                  const Deadline& deadline) {
  auto peer = attachment_process(pods_dir, attachment, deadline);
  // It may exit at any moment.
  auto mntns = peer ? mount_namespace_of(peer->pidfd.get()) : Result<Fd>(peer.error());
  if (!mntns && is_not_listening(mntns.error())) return std::optional<Fd>();
  if (!mntns) return mntns.error();
  auto id = stat_fd(mntns->get(), "mount namespace of attachment");
  if (!id) return id.error();
  auto launcher_id = stat_fd(launcher.mntns.get(), "mount namespace of launcher");
  if (!launcher_id) return launcher_id.error();
  if (same_inode(*id, *launcher_id)) {
    return Error::refusal(EPERM, "attachment process is in the launcher's mount namespace");
  }
  return std::optional<Fd>(std::move(*mntns));
}

// A directory of the container's own root, or what the runtime mounts for every container, is no volume.
Status check_volume_mount(const Home& home, int directory, const std::string& volume) {
  struct statx st {};
  if (::statx(directory, "", AT_EMPTY_PATH, STATX_BASIC_STATS | STATX_MNT_ID, &st) != 0) {
    return Error::last("statx /" + volume);
  }
  if ((st.stx_attributes & STATX_ATTR_MOUNT_ROOT) == 0) return Error::refusal(EPERM, "/" + volume + " is not a mount");
  auto mountinfo = home.mountinfo();
  if (!mountinfo) return mountinfo.error();
  std::string_view type = filesystem_of_mount(*mountinfo, st.stx_mnt_id);
  for (std::string_view each : kKernelFilesystems) {
    if (type == each) return Error::refusal(EPERM, "/" + volume + " is a kernel file system");
  }
  return type.empty() ? Error::refusal(EPERM, "file system of /" + volume) : ok();
}

struct Source {
  PlugOutcome outcome = PlugOutcome::kNotReady;
  Fd tree;  // detached, when the outcome is kPlugged
  struct stat id {};
};

// Called inside the attachment's namespace: the kernel refuses to clone a mount of another one.
Result<Source> clone_volume(const Home& home, const std::string& volume, PlugKind kind) {
  Source source;
  auto root = open_root();
  if (!root) return root.error();
  auto shown = walk(root->get(), volume, O_PATH | O_DIRECTORY, kNoLinks, "/" + volume);
  if (!shown && shown.error().code == ENOENT) return source;
  if (!shown) return shown.error();
  auto checked = check_volume_mount(home, shown->get(), volume);
  if (!checked) return checked.error();
  if (kind == PlugKind::kDisk) {
    auto image = walk(shown->get(), kImage, O_PATH, kOneMount, kImage);
    if (!image && image.error().code == ENOENT) {
      source.outcome = PlugOutcome::kMissing;
      return source;
    }
    if (!image) return image.error();
    shown = std::move(image);
  }
  auto st = stat_fd(shown->get(), kImage);
  if (!st) return st.error();
  if ((st->st_mode & S_IFMT) != type_of(kind)) return Error::refusal(EINVAL, "disk.img is not a regular file");
  source.tree.reset(::open_tree(shown->get(), "", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH));
  if (!source.tree.valid()) return Error::last("open_tree volume");
  mount_attr attributes{};
  attributes.attr_set = kAttributes;
  attributes.propagation = MS_PRIVATE;
  if (::mount_setattr(source.tree.get(), "", AT_EMPTY_PATH, &attributes, sizeof attributes) != 0) {
    return Error::last("mount_setattr volume");
  }
  source.outcome = PlugOutcome::kPlugged;
  source.id = *st;
  return source;
}

// Removes the entry, on which nothing is mounted any more.
Result<bool> remove_entry(int directory, const std::string& name) {
  if (::unlinkat(directory, name.c_str(), 0) == 0) return true;
  if (errno == EISDIR) {
    if (::unlinkat(directory, name.c_str(), AT_REMOVEDIR) == 0) return true;
    if (errno == ENOTEMPTY) return false;
  }
  if (errno == ENOENT) return false;
  return Error::last("unlinkat " + name);
}

}  // namespace

Status check_volume_name(std::string_view name) {
  if (!is_label(name)) return Error::refusal(EINVAL, "volume name");
  return ok();
}

Status check_plug_name(std::string_view name) {
  bool image = name.size() > kImageSuffix.size() && name.substr(name.size() - kImageSuffix.size()) == kImageSuffix;
  return check_volume_name(image ? name.substr(0, name.size() - kImageSuffix.size()) : name);
}

Result<std::vector<PluggedEntry>> list_plugged(Home& home, int pods_dir, const PodUid& pod, const Launcher* launcher) {
  auto volume = open_hotplug_disks(pods_dir, pod);
  if (!volume) return volume.error();
  Journey journey(home);
  Fd directory = std::move(volume->directory);
  if (launcher != nullptr) {
    auto inside = home.enter_mount(launcher->mntns.get());
    if (!inside) return inside.error();
    auto shown = find_in_launcher(PodVolume::kHotplugDisks, volume->id);
    if (!shown) return shown.error();
    if (!*shown) return std::vector<PluggedEntry>();
    directory = std::move(**shown);
  }
  auto names = read_directory(directory.get(), kMaxEntries, kHotplugDisks);
  if (!names) return names.error();
  std::vector<PluggedEntry> entries;
  for (const std::string& name : *names) {
    if (!check_plug_name(name)) continue;
    auto entry = walk(directory.get(), name, O_PATH | O_NOFOLLOW, kNoLinks, name);
    // A link, or gone meanwhile: neither is plugged.
    if (!entry) continue;
    auto seen = look_at(entry->get(), name);
    if (!seen) return seen.error();
    entries.push_back({name, seen->mounted, S_ISBLK(seen->type)});
  }
  return entries;
}

Result<Owned> own_plugged(Home& home, int pods_dir, const PodUid& pod, const Launcher& launcher,
                          const std::string& volume, PlugKind kind, const PlugOwner& owner) {
  auto valid = check_volume_name(volume);
  if (!valid) return valid.error();
  auto disks = open_hotplug_disks(pods_dir, pod);
  if (!disks) return disks.error();
  Journey journey(home);
  auto inside = home.enter_mount(launcher.mntns.get());
  if (!inside) return inside.error();
  auto directory = open_in_launcher(PodVolume::kHotplugDisks, disks->id);
  if (!directory) return directory.error();
  const std::string name = plug_name(volume, kind);
  auto entry = find_mounted(directory->get(), name, kind);
  if (!entry) return entry.error();
  if (!*entry) return Owned::kAbsent;
  auto given = give_away((*entry)->get(), owner.uid, owner.gid, name);
  if (!given) return given.error();
  if (*given == Given::kKept) return Owned::kKept;
  return *given == Given::kChanged ? Owned::kChanged : Owned::kUnchanged;
}

Result<PlugOutcome> plug_filesystem(Home& home, int pods_dir, const PodUid& pod, const Launcher& launcher,
                                    const PodUid& attachment, const std::string& volume, PlugKind kind,
                                    const PlugOwner& owner, const Deadline& deadline) {
  auto valid = check_volume_name(volume);
  if (!valid) return valid.error();
  auto disks = open_hotplug_disks(pods_dir, pod);
  if (!disks) return disks.error();
  auto mntns = namespace_of_attachment(pods_dir, attachment, launcher, deadline);
  if (!mntns) return mntns.error();
  if (!*mntns) return PlugOutcome::kNotReady;

  Journey journey(home);
  auto inside = home.enter_mount((*mntns)->get());
  if (!inside) return inside.error();
  auto source = clone_volume(home, volume, kind);
  if (!source) return source.error();
  if (source->outcome != PlugOutcome::kPlugged) return source->outcome;
  if (deadline.passed()) return Error::of(ETIMEDOUT, "plug " + volume);

  inside = home.enter_mount(launcher.mntns.get());
  if (!inside) return inside.error();
  auto directory = open_in_launcher(PodVolume::kHotplugDisks, disks->id);
  if (!directory) return directory.error();
  const std::string name = plug_name(volume, kind);
  auto attached = attach_mount(source->tree.get(), directory->get(), name, source->id,
                               kind == PlugKind::kDisk ? kFileMode : kDirectoryMode);
  if (!attached) return attached.error();
  auto fail = [&](Error error) {
    error.unchanged = false;
    return error;
  };
  auto entry = find_mounted(directory->get(), name, kind);
  if (!entry) return fail(entry.error());
  auto st = *entry ? stat_fd((*entry)->get(), name) : Result<struct stat>(Error::of(ENOENT, "mounted " + name));
  if (!st) return fail(st.error());
  if (!same_inode(*st, source->id)) return fail(Error::refusal(EPERM, "identity of mounted " + name));
  auto given = give_away((*entry)->get(), owner.uid, owner.gid, name);
  if (!given) return fail(given.error());
  return *given == Given::kKept ? PlugOutcome::kPluggedKept : PlugOutcome::kPlugged;
}

Result<bool> unplug(Home& home, int pods_dir, const PodUid& pod, const Launcher* launcher, const std::string& name) {
  auto valid = check_plug_name(name);
  if (!valid) return valid.error();
  auto disks = open_hotplug_disks(pods_dir, pod);
  if (!disks && (disks.error().code == ENOENT || disks.error().code == ENOTDIR)) return false;
  if (!disks) return disks.error();
  Journey journey(home);
  bool changed = false;
  auto fail = [&](Error error) {
    error.unchanged = error.unchanged && !changed;
    return error;
  };
  if (launcher != nullptr) {
    auto inside = home.enter_mount(launcher->mntns.get());
    if (!inside) return inside.error();
    auto directory = find_in_launcher(PodVolume::kHotplugDisks, disks->id);
    if (!directory) return directory.error();
    auto unmounted = *directory ? unmount_entry((*directory)->get(), name) : Result<bool>(false);
    if (!unmounted) return unmounted.error();
    changed = *unmounted;
    auto back = journey.end();
    if (!back) return fail(back.error());
  }
  // What a handler before us has mounted on the host and let propagate.
  auto unmounted = unmount_entry(disks->directory.get(), name);
  bool left = ::chdir("/") == 0;  // not to keep the volume busy
  if (!left && unmounted) unmounted = Error::last("chdir /");
  if (!unmounted) return fail(unmounted.error());
  changed = changed || *unmounted;
  auto removed = remove_entry(disks->directory.get(), name);
  if (!removed) return fail(removed.error());
  return changed || *removed;
}

}  // namespace privsep
