#include "devices.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "mountinfo.h"
#include "walk.h"

namespace privsep {

namespace {

struct DeviceNode {
  const char* name;
  const char* path;
  unsigned minor;
};

constexpr unsigned kMiscMajor = 10;
constexpr size_t kMaxDevices = 16;
constexpr ClaimableDevice kClaimable[] = {ClaimableDevice::kKvm, ClaimableDevice::kTun, ClaimableDevice::kVhostNet,
                                          ClaimableDevice::kVhostVsock};

const DeviceNode& node_of(ClaimableDevice device) {
  static constexpr DeviceNode nodes[] = {{"kvm", "dev/kvm", 232},
                                         {"tun", "dev/net/tun", 200},
                                         {"vhost-net", "dev/vhost-net", 238},
                                         {"vhost-vsock", "dev/vhost-vsock", 241}};
  return nodes[static_cast<size_t>(device)];
}

Result<ClaimOutcome> claim(int root, const DeviceNode& node, dev_t host_dev, uid_t uid, gid_t gid) {
  auto inode = walk(root, node.path, O_PATH, kNoLinks, node.path);
  if (!inode) {
    if (inode.error().code == ENOENT) return ClaimOutcome::kMissing;
    return inode.error();
  }
  auto st = stat_fd(inode->get(), node.path);
  if (!st) return st.error();
  if (!S_ISCHR(st->st_mode) || st->st_rdev != makedev(kMiscMajor, node.minor)) {
    return Error::refusal(EPERM, std::string("type of ") + node.path);
  }
  if (st->st_dev == host_dev) return Error::refusal(EPERM, std::string(node.path) + " is the host's own");
  if (st->st_uid == uid && st->st_gid == gid) return ClaimOutcome::kAlreadyOwned;
  if (::fchownat(inode->get(), "", uid, gid, AT_EMPTY_PATH) != 0) {
    return Error::last(std::string("fchownat ") + node.path);
  }
  return ClaimOutcome::kClaimed;
}

Result<ObservedDevice> observe(int root, const DeviceNode& node, dev_t host_dev) {
  ObservedDevice device;
  device.name = node.name;
  auto inode = walk(root, node.path, O_PATH, kNoLinks, node.path);
  if (!inode && inode.error().code == ENOENT) return device;
  device.state = NodeState::kOther;
  if (!inode && inode.error().refused) return device;
  if (!inode) return inode.error();
  auto st = stat_fd(inode->get(), node.path);
  if (!st) return st.error();
  if (S_ISCHR(st->st_mode) && st->st_rdev == makedev(kMiscMajor, node.minor)) {
    device.state = st->st_dev == host_dev ? NodeState::kHost : NodeState::kPresent;
  }
  device.uid = st->st_uid;
  device.gid = st->st_gid;
  device.mode = st->st_mode & 07777;
  return device;
}

// With the thread in the launcher's mount namespace.
Result<std::vector<ObservedDevice>> observe_all(const Home& home) {
  auto mountinfo = home.mountinfo();
  if (!mountinfo) return mountinfo.error();
  Fd root(::open("/", O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!root.valid()) return Error::last("open root of the launcher");
  dev_t host_dev = find_filesystem(*mountinfo, "devtmpfs");
  std::vector<ObservedDevice> devices;
  for (ClaimableDevice which : kClaimable) {
    auto device = observe(root.get(), node_of(which), host_dev);
    if (!device) return device.error();
    devices.push_back(*device);
  }
  return devices;
}

}  // namespace

Result<ClaimableDevice> parse_device(std::string_view name) {
  for (ClaimableDevice device : kClaimable) {
    if (name == node_of(device).name) return device;
  }
  return Error::refusal(EINVAL, "device");
}

Result<std::vector<ClaimOutcome>> claim_devices(Home& home, const Launcher& launcher,
                                                const std::vector<ClaimableDevice>& devices, uid_t uid, gid_t gid) {
  if (devices.size() > kMaxDevices) return Error::refusal(E2BIG, "number of devices");
  auto alive = check_alive(launcher.pidfd.get(), "launcher");
  if (!alive) return alive.error();
  std::vector<ClaimOutcome> outcomes;
  Error failure;
  auto inside = home.enter_mount(launcher.mntns.get());
  if (!inside) return inside.error();
  // devtmpfs is one file system for the whole kernel: a node on it is the host's, wherever it is mounted.
  auto mountinfo = home.mountinfo();
  if (!mountinfo) failure = mountinfo.error();
  dev_t host_dev = mountinfo ? find_filesystem(*mountinfo, "devtmpfs") : 0;
  Fd root(::open("/", O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (failure.code == 0 && !root.valid()) failure = Error::last("open root of the launcher");
  bool changed = false;
  for (size_t i = 0; i < devices.size() && failure.code == 0; ++i) {
    auto outcome = claim(root.get(), node_of(devices[i]), host_dev, uid, gid);
    if (outcome) {
      changed = changed || *outcome == ClaimOutcome::kClaimed;
      outcomes.push_back(*outcome);
    } else {
      failure = outcome.error();
    }
  }
  auto back = home.come_back();
  if (failure.code == 0 && !back) failure = back.error();
  if (failure.code != 0) {
    failure.unchanged = !changed;
    return failure;
  }
  return outcomes;
}

Result<std::vector<ObservedDevice>> observe_devices(Home& home, const Launcher& launcher) {
  auto alive = check_alive(launcher.pidfd.get(), "launcher");
  if (!alive) return alive.error();
  auto inside = home.enter_mount(launcher.mntns.get());
  if (!inside) return inside.error();
  auto devices = observe_all(home);
  auto back = home.come_back();
  if (!back) return back.error();
  return devices;
}

}  // namespace privsep
