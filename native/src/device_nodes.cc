#include "device_nodes.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "walk.h"

namespace privsep {

namespace {

constexpr size_t kMaxEntries = 4096;
constexpr int kMaxDepth = 8;

class Listing {
 public:
  Status add(int directory, const std::string& prefix, int depth) {
    auto names = read_directory(directory, kMaxEntries - seen_, "/dev/" + prefix);
    if (!names) return names.error();
    seen_ += names->size();
    for (const std::string& name : *names) {
      std::string path = prefix + name;
      auto st = stat_entry(directory, name, "/dev/" + path);
      if (!st) return st.error();
      if (!*st) continue;
      if (S_ISCHR((*st)->st_mode) || S_ISBLK((*st)->st_mode)) {
        nodes_.push_back({path, S_ISBLK((*st)->st_mode), major((*st)->st_rdev), minor((*st)->st_rdev)});
      } else if (S_ISDIR((*st)->st_mode) && depth < kMaxDepth) {
        auto inner = enter(directory, name, path, depth);
        if (!inner) return inner.error();
      }
    }
    return ok();
  }

  std::vector<DeviceNode> take() { return std::move(nodes_); }

 private:
  Status enter(int directory, const std::string& name, const std::string& path, int depth) {
    auto inner = walk(directory, name, O_PATH | O_DIRECTORY, kOneMount, "/dev/" + path);
    if (inner) return add(inner->get(), path + "/", depth + 1);
    // A mount, or something else by now.
    int code = inner.error().code;
    if (inner.error().refused || code == ENOENT || code == ENOTDIR) return ok();
    return inner.error();
  }

  std::vector<DeviceNode> nodes_;
  size_t seen_ = 0;
};

Result<std::vector<DeviceNode>> list_here() {
  Fd root(::open("/", O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!root.valid()) return Error::last("open root of the launcher");
  auto dev = walk(root.get(), "dev", O_PATH | O_DIRECTORY, kNoLinks, "/dev");
  if (!dev) return dev.error();
  Listing listing;
  auto listed = listing.add(dev->get(), "", 1);
  if (!listed) return listed.error();
  return listing.take();
}

}  // namespace

Result<std::vector<DeviceNode>> list_device_nodes(Home& home, const Launcher& launcher) {
  auto alive = check_alive(launcher.pidfd.get(), "launcher");
  if (!alive) return alive.error();
  auto inside = home.enter_mount(launcher.mntns.get());
  if (!inside) return inside.error();
  auto nodes = list_here();
  auto back = home.come_back();
  if (!back) return back.error();
  return nodes;
}

}  // namespace privsep
