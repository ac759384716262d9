#include "vmi_disks.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <algorithm>

#include "mount_point.h"
#include "volume_owner.h"
#include "walk.h"

namespace privsep {

namespace {

// /var/run is a link in launcher images, hence resolved inside the root.
constexpr const char* kDisksInLauncher = "var/run/kubevirt-private/vmi-disks";
constexpr mode_t kImageMode = 0644;
constexpr size_t kMaxPlugins = 256;
constexpr size_t kMaxVolumes = 4096;
// Volumes of the pod's own, which no claim is behind.
constexpr const char* kPodOnly[] = {"kubernetes.io~empty-dir", "kubernetes.io~configmap", "kubernetes.io~secret",
                                    "kubernetes.io~downward-api", "kubernetes.io~projected"};

// Of the namespace in which the calling thread is.
Result<Fd> open_volume_directory(const std::string& volume) {
  const std::string what = "vmi-disks/" + volume;
  auto root = open_root();
  if (!root) return root.error();
  auto disks = walk(root->get(), kDisksInLauncher, O_PATH | O_DIRECTORY, kInRoot, "vmi-disks of launcher");
  if (!disks) return disks.error();
  auto directory = walk(disks->get(), volume, O_PATH | O_DIRECTORY, kNoLinks, what);
  if (!directory) return directory.error();
  auto seen = look_at(directory->get(), what);
  if (!seen) return seen.error();
  if (!seen->mounted) return Error::refusal(EPERM, what + " is not a volume");
  return directory;
}

// Made by this helper and not given away: a call died before its end. It holds no data yet, so that nothing is lost
// should it be another's after all.
bool is_unfinished(const struct stat& st) {
  return S_ISREG(st.st_mode) && st.st_uid == ::geteuid() && st.st_nlink == 1 && st.st_blocks == 0;
}

struct FoundImage {
  Fd inode;  // O_PATH
  bool unfinished = false;
};

// Nothing when there is no entry of the name. Anything but a regular file of the volume is refused.
Result<std::optional<FoundImage>> find_image(int directory, const std::string& file) {
  auto inode = walk(directory, file, O_PATH, kOneMount, file);
  if (!inode && inode.error().code == ENOENT) return std::optional<FoundImage>();
  if (!inode) return inode.error();
  auto st = stat_fd(inode->get(), file);
  if (!st) return st.error();
  if (!S_ISREG(st->st_mode)) return Error::refusal(EINVAL, "type of " + file);
  return std::optional<FoundImage>({std::move(*inode), is_unfinished(*st)});
}

uint64_t available_bytes(const struct statfs& fs) {
  uint64_t bytes = 0;
  bool overflows = __builtin_mul_overflow(fs.f_bavail, static_cast<uint64_t>(fs.f_bsize), &bytes);
  return overflows ? UINT64_MAX : bytes;
}

// An empty image of the helper's own user, open for writing. Nothing when somebody else's stands there. The journey
// into the launcher's namespace may have ended.
Result<std::optional<Fd>> open_new_image(Journey& journey, int directory, const std::string& file) {
  auto made = walk(directory, file, O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_CREAT | O_EXCL, kOneMount, file, kImageMode);
  if (made) return std::optional<Fd>(std::move(*made));
  if (made.error().code != EEXIST) return made.error();
  auto found = find_image(directory, file);
  if (!found) return found.error();
  if (!*found) return Error::of(EAGAIN, file + " came and went");
  if (!(*found)->unfinished) return std::optional<Fd>();
  // At home again, where descriptors have paths: by its name a device may be opened that has taken its place.
  auto back = journey.end();
  if (!back) return back.error();
  Fd image(::open(fd_path((*found)->inode.get()).c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC));
  if (!image.valid()) return Error::last("open " + file);
  // Another call may have finished it meanwhile.
  auto st = stat_fd(image.get(), file);
  if (!st) return st.error();
  if (!is_unfinished(*st)) return std::optional<Fd>();
  return std::optional<Fd>(std::move(image));
}

// The owner last: until then a later call knows the image for unfinished.
Status give_image(int image, uint64_t size, uid_t uid, gid_t gid, const std::string& file) {
  if (::ftruncate(image, static_cast<off_t>(size)) != 0) return Error::last("ftruncate " + file);
  if (::fchown(image, uid, gid) != 0) return Error::last("fchown " + file);
  return ok();
}

Result<bool> is_volume_root(int directory, const std::string& name, const struct stat& wanted) {
  auto candidate = walk(directory, name, O_PATH | O_DIRECTORY, kNoLinks, name);
  if (!candidate) {
    // EACCES: a server that does not let the helper in, NFS with root_squash for one.
    const int code = candidate.error().code;
    if (code == ENOENT || code == ENOTDIR || code == ELOOP || code == EACCES) return false;
    return candidate.error();
  }
  auto st = stat_fd(candidate->get(), name);
  if (!st) return st.error();
  if (!same_inode(*st, wanted)) return false;
  auto seen = look_at(candidate->get(), name);
  if (!seen) return seen.error();
  return seen->mounted;
}

// Whether kubelet has a mount with this root among the pod's volumes: <plugin>/<volume>, or below it `mount`.
Result<bool> is_kubelet_volume(int pods_dir, const PodUid& pod, const struct stat& wanted) {
  auto volumes = walk(pods_dir, pod.text() + "/volumes", O_PATH | O_DIRECTORY, kNoLinks, "volumes of the pod");
  if (!volumes) return volumes.error();
  auto plugins = read_directory(volumes->get(), kMaxPlugins, "volumes of the pod");
  if (!plugins) return plugins.error();
  for (const std::string& plugin : *plugins) {
    if (std::find(std::begin(kPodOnly), std::end(kPodOnly), plugin) != std::end(kPodOnly)) continue;
    auto directory = walk(volumes->get(), plugin, O_PATH | O_DIRECTORY, kNoLinks, plugin);
    if (!directory) return directory.error();
    auto names = read_directory(directory->get(), kMaxVolumes, plugin);
    if (!names) return names.error();
    for (const std::string& name : *names) {
      for (const std::string& place : {name, name + "/mount"}) {
        auto found = is_volume_root(directory->get(), place, wanted);
        if (!found || *found) return found;
      }
    }
  }
  return false;
}

}  // namespace

Result<VmiDisk> VmiDisk::parse(std::string volume, std::string file) {
  if (!is_entry_name(volume)) return Error::refusal(EINVAL, "volume");
  if (!file.empty() && !is_entry_name(file)) return Error::refusal(EINVAL, "file");
  return VmiDisk{std::move(volume), std::move(file)};
}

Result<VmiDiskState> vmi_disk_state(Home& home, const Launcher& launcher, const VmiDisk& disk) {
  auto alive = check_alive(launcher.pidfd.get(), "launcher");
  if (!alive) return alive.error();
  Journey journey(home);
  auto inside = home.enter_mount(launcher.mntns.get());
  if (!inside) return inside.error();
  auto directory = open_volume_directory(disk.volume);
  if (!directory) return directory.error();
  VmiDiskState state;
  state.exists = disk.file.empty();
  if (!state.exists) {
    auto image = find_image(directory->get(), disk.file);
    if (!image) return image.error();
    state.exists = *image && !(*image)->unfinished;
  }
  struct statfs fs {};
  if (::fstatfs(directory->get(), &fs) != 0) return Error::last("fstatfs vmi-disks/" + disk.volume);
  state.available = available_bytes(fs);
  return state;
}

Result<bool> create_vmi_disk(Home& home, const Launcher& launcher, const VmiDisk& disk, uint64_t size, uid_t uid,
                             gid_t gid) {
  if (disk.file.empty()) return Error::refusal(EINVAL, "file");
  if (size == 0 || size > kMaxDiskSize) return Error::refusal(EFBIG, "size of " + disk.file);
  auto alive = check_alive(launcher.pidfd.get(), "launcher");
  if (!alive) return alive.error();
  Journey journey(home);
  auto inside = home.enter_mount(launcher.mntns.get());
  if (!inside) return inside.error();
  auto directory = open_volume_directory(disk.volume);
  if (!directory) return directory.error();
  auto image = open_new_image(journey, directory->get(), disk.file);
  if (!image) return image.error();
  if (!*image) return false;
  auto given = give_image((*image)->get(), size, uid, gid, disk.file);
  if (given) return true;
  Error error = given.error();
  error.unchanged = ::unlinkat(directory->get(), disk.file.c_str(), 0) == 0;
  return error;
}

Result<VolumeClaim> claim_vmi_disks(Home& home, int pods_dir, const PodUid& pod, const Launcher& launcher,
                                    const std::string& volume, uid_t uid, gid_t gid) {
  auto alive = check_alive(launcher.pidfd.get(), "launcher");
  if (!alive) return alive.error();
  Journey journey(home);
  auto inside = home.enter_mount(launcher.mntns.get());
  if (!inside) return inside.error();
  auto directory = open_volume_directory(volume);
  if (!directory) return directory.error();
  auto back = journey.end();
  if (!back) return back.error();
  const std::string what = "vmi-disks/" + volume;
  auto st = stat_fd(directory->get(), what);
  if (!st) return st.error();
  if (st->st_uid == uid && st->st_gid == gid) return VolumeClaim::kAlreadyOwned;
  auto ours = is_kubelet_volume(pods_dir, pod, *st);
  if (!ours) return ours.error();
  if (!*ours) return VolumeClaim::kForeign;
  auto given = give_away(directory->get(), uid, gid, what);
  if (!given) return given.error();
  return *given == Given::kKept ? VolumeClaim::kKept : VolumeClaim::kClaimed;
}

}  // namespace privsep
