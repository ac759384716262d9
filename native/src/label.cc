#include "label.h"

#include <sys/xattr.h>

namespace privsep {

namespace {

constexpr const char* kLabel = "security.selinux";
constexpr size_t kMaxLabel = 4096;

}  // namespace

Result<std::string> launcher_root_label(Home& home, const Launcher& launcher) {
  auto alive = check_alive(launcher.pidfd.get(), "launcher");
  if (!alive) return alive.error();
  auto inside = home.enter_mount(launcher.mntns.get());
  if (!inside) return inside.error();
  char value[kMaxLabel];
  ssize_t size = ::getxattr("/", kLabel, value, sizeof value);
  Error failure = Error::last("getxattr security.selinux of the launcher's root");
  auto back = home.come_back();
  if (!back) return back.error();
  if (size < 0 && (failure.code == ENODATA || failure.code == EOPNOTSUPP)) return std::string();
  if (size < 0) return failure;
  return std::string(value, static_cast<size_t>(size));
}

}  // namespace privsep
