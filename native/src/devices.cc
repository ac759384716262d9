#include "devices.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <optional>

#include "mount_point.h"
#include "mountinfo.h"
#include "walk.h"

namespace privsep {

namespace {

struct DeviceNode {
  const char* name;
  const char* path;
  // Of major 10; nothing where the kernel has no such device.
  std::optional<unsigned> minor;
};

constexpr unsigned kMiscMajor = 10;
constexpr size_t kMaxDevices = 16;
constexpr size_t kMaxVfioEntries = 1024;
constexpr mode_t kEverybody = 0666;
constexpr ClaimableDevice kClaimable[] = {
    ClaimableDevice::kKvm,        ClaimableDevice::kMshv, ClaimableDevice::kTun, ClaimableDevice::kVhostNet,
    ClaimableDevice::kVhostVsock, ClaimableDevice::kSev,  ClaimableDevice::kVfio};

DeviceNode node_of(ClaimableDevice device, const DeviceNumbers& numbers) {
  switch (device) {
    case ClaimableDevice::kKvm:
      return {"kvm", "dev/kvm", 232};
    case ClaimableDevice::kMshv:
      return {"mshv", "dev/mshv", numbers.mshv_minor};
    case ClaimableDevice::kTun:
      return {"tun", "dev/net/tun", 200};
    case ClaimableDevice::kVhostNet:
      return {"vhost-net", "dev/vhost-net", 238};
    case ClaimableDevice::kVhostVsock:
      return {"vhost-vsock", "dev/vhost-vsock", 241};
    case ClaimableDevice::kSev:
      return {"sev", "dev/sev", numbers.sev_minor};
    case ClaimableDevice::kVfio:
      return {"vfio", "dev/vfio/vfio", 196};
  }
  return {};
}

bool is_node(const struct stat& st, const DeviceNode& node) {
  return S_ISCHR(st.st_mode) && node.minor && st.st_rdev == makedev(kMiscMajor, *node.minor);
}

// The launcher's /dev, from inside its mount namespace, and what is to be done in it.
class LauncherDevices {
 public:
  LauncherDevices(Fd root, dev_t host_dev, const DeviceNumbers& numbers, uid_t uid, gid_t gid)
      : root_(std::move(root)), host_dev_(host_dev), numbers_(numbers), uid_(uid), gid_(gid) {}

  static Result<LauncherDevices> open(const Home& home, const DeviceNumbers& numbers, uid_t uid, gid_t gid) {
    // devtmpfs is one file system for the whole kernel: a node on it is the host's, wherever it is mounted.
    auto mountinfo = home.mountinfo();
    if (!mountinfo) return mountinfo.error();
    auto root = open_root();
    if (!root) return root.error();
    return LauncherDevices(std::move(*root), find_filesystem(*mountinfo, "devtmpfs"), numbers, uid, gid);
  }

  Result<ClaimOutcome> claim(ClaimableDevice device) {
    if (device == ClaimableDevice::kVfio) return claim_vfio();
    const DeviceNode node = node_of(device, numbers_);
    auto inode = walk(root_.get(), node.path, O_PATH, kNoLinks, node.path);
    if (!inode && inode.error().code == ENOENT) return ClaimOutcome::kMissing;
    if (!inode) return inode.error();
    auto st = stat_fd(inode->get(), node.path);
    if (!st) return st.error();
    if (!is_node(*st, node)) return Error::refusal(EPERM, std::string("type of ") + node.path);
    return give(inode->get(), *st, node.path);
  }

  Result<ClaimOutcome> claim_volume(const std::string& volume) {
    const std::string path = "dev/" + volume;
    if (!is_entry_name(volume)) return Error::refusal(EINVAL, "volume");
    auto dev = walk(root_.get(), "dev", O_PATH | O_DIRECTORY, kNoLinks, "dev");
    if (!dev) return dev.error();
    auto inode = walk(dev->get(), volume, O_PATH, kOneMount, path);
    if (!inode && inode.error().code == ENOENT) return ClaimOutcome::kMissing;
    if (!inode) return inode.error();
    auto st = stat_fd(inode->get(), path);
    if (!st) return st.error();
    if (!S_ISBLK(st->st_mode)) return Error::refusal(EPERM, "type of " + path);
    return give(inode->get(), *st, path);
  }

  Result<ObservedDevice> observe(ClaimableDevice which) const {
    const DeviceNode node = node_of(which, numbers_);
    ObservedDevice device;
    device.name = node.name;
    auto inode = walk(root_.get(), node.path, O_PATH, kNoLinks, node.path);
    if (!inode && inode.error().code == ENOENT) return device;
    device.state = NodeState::kOther;
    if (!inode && inode.error().refused) return device;
    if (!inode) return inode.error();
    auto st = stat_fd(inode->get(), node.path);
    if (!st) return st.error();
    if (is_node(*st, node)) device.state = st->st_dev == host_dev_ ? NodeState::kHost : NodeState::kPresent;
    device.uid = st->st_uid;
    device.gid = st->st_gid;
    device.mode = st->st_mode & 07777;
    return device;
  }

  // True when something changed, also where a later step failed.
  bool changed() const { return changed_; }

  // Nodes whose mode is to become 0666. Only a path in /proc leads to them, and that exists at home.
  Status open_to_everybody() {
    for (const Fd& node : to_open_) {
      if (::fchmodat(AT_FDCWD, fd_path(node.get()).c_str(), kEverybody, 0) != 0) {
        return Error::last("fchmodat dev/vfio/vfio");
      }
      changed_ = true;
    }
    return ok();
  }

 private:
  Result<ClaimOutcome> give(int inode, const struct stat& st, const std::string& path) {
    if (st.st_dev == host_dev_) return Error::refusal(EPERM, path + " is the host's own");
    if (st.st_uid == uid_ && st.st_gid == gid_) return ClaimOutcome::kAlreadyOwned;
    if (::fchownat(inode, "", uid_, gid_, AT_EMPTY_PATH) != 0) return Error::last("fchownat " + path);
    changed_ = true;
    return ClaimOutcome::kClaimed;
  }

  Result<ClaimOutcome> claim_vfio() {
    const DeviceNode node = node_of(ClaimableDevice::kVfio, numbers_);
    auto container = walk(root_.get(), node.path, O_PATH, kNoLinks, node.path);
    if (!container && container.error().code == ENOENT) return ClaimOutcome::kMissing;
    if (!container) return container.error();
    auto st = stat_fd(container->get(), node.path);
    if (!st) return st.error();
    if (!is_node(*st, node)) return Error::refusal(EPERM, std::string("type of ") + node.path);
    if (st->st_dev == host_dev_) return Error::refusal(EPERM, std::string(node.path) + " is the host's own");
    bool claimed = (st->st_mode & 07777) != kEverybody;
    if (claimed) to_open_.push_back(std::move(*container));

    auto directory = walk(root_.get(), "dev/vfio", O_PATH | O_DIRECTORY, kNoLinks, "dev/vfio");
    if (!directory) return directory.error();
    auto names = read_directory(directory->get(), kMaxVfioEntries, "dev/vfio");
    if (!names) return names.error();
    std::sort(names->begin(), names->end());
    for (const std::string& name : *names) {
      if (name == "vfio") continue;
      auto outcome = claim_vfio_entry(directory->get(), name);
      if (!outcome) return outcome.error();
      claimed = claimed || *outcome == ClaimOutcome::kClaimed;
    }
    return claimed ? ClaimOutcome::kClaimed : ClaimOutcome::kAlreadyOwned;
  }

  // A group's node, or the directory that has the devices of iommufd.
  Result<ClaimOutcome> claim_vfio_entry(int directory, const std::string& name) {
    const std::string path = "dev/vfio/" + name;
    auto inode = walk(directory, name, O_PATH, kOneMount, path);
    if (!inode) return inode.error();
    auto st = stat_fd(inode->get(), path);
    if (!st) return st.error();
    bool group = S_ISCHR(st->st_mode) && numbers_.vfio_group_major && major(st->st_rdev) == *numbers_.vfio_group_major;
    bool devices = S_ISDIR(st->st_mode) && name == "devices";
    if (!group && !devices) return Error::refusal(EPERM, "type of " + path);
    return give(inode->get(), *st, path);
  }

  Fd root_;
  dev_t host_dev_;
  DeviceNumbers numbers_;
  uid_t uid_;
  gid_t gid_;
  std::vector<Fd> to_open_;
  bool changed_ = false;
};

}  // namespace

Result<ClaimableDevice> parse_device(std::string_view name) {
  for (ClaimableDevice device : kClaimable) {
    if (name == node_of(device, {}).name) return device;
  }
  return Error::refusal(EINVAL, "device");
}

Result<std::vector<ClaimOutcome>> claim_devices(Home& home, const Launcher& launcher, const DeviceNumbers& numbers,
                                                const std::vector<ClaimableDevice>& devices,
                                                const std::vector<std::string>& volumes, uid_t uid, gid_t gid) {
  if (devices.size() > kMaxDevices) return Error::refusal(E2BIG, "number of devices");
  if (volumes.size() > kMaxClaimedVolumes) return Error::refusal(E2BIG, "number of volumes");
  auto alive = check_alive(launcher.pidfd.get(), "launcher");
  if (!alive) return alive.error();
  Journey journey(home);
  auto inside = home.enter_mount(launcher.mntns.get());
  if (!inside) return inside.error();
  auto dev = LauncherDevices::open(home, numbers, uid, gid);
  if (!dev) return dev.error();
  auto fail = [&](Error error) {
    error.unchanged = !dev->changed();
    return error;
  };
  std::vector<ClaimOutcome> outcomes;
  for (ClaimableDevice device : devices) {
    auto outcome = dev->claim(device);
    if (!outcome) return fail(outcome.error());
    outcomes.push_back(*outcome);
  }
  for (const std::string& volume : volumes) {
    auto outcome = dev->claim_volume(volume);
    if (!outcome) return fail(outcome.error());
    outcomes.push_back(*outcome);
  }
  auto back = journey.end();
  if (!back) return fail(back.error());
  auto opened = dev->open_to_everybody();
  if (!opened) return fail(opened.error());
  return outcomes;
}

Result<std::vector<ObservedDevice>> observe_devices(Home& home, const Launcher& launcher,
                                                    const DeviceNumbers& numbers) {
  auto alive = check_alive(launcher.pidfd.get(), "launcher");
  if (!alive) return alive.error();
  Journey journey(home);
  auto inside = home.enter_mount(launcher.mntns.get());
  if (!inside) return inside.error();
  auto dev = LauncherDevices::open(home, numbers, 0, 0);
  if (!dev) return dev.error();
  std::vector<ObservedDevice> devices;
  for (ClaimableDevice which : kClaimable) {
    auto device = dev->observe(which);
    if (!device) return device.error();
    devices.push_back(*device);
  }
  auto back = journey.end();
  if (!back) return back.error();
  return devices;
}

}  // namespace privsep
