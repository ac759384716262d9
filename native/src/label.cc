#include "label.h"

#include <sys/xattr.h>

#include <algorithm>

#include "proc_file.h"

namespace privsep {

namespace {

constexpr const char* kLabel = "security.selinux";
constexpr size_t kMaxLabel = 4096;

Result<std::string> read_context(const std::string& path) {
  auto text = read_proc_file(path, kMaxLabel);
  if (!text) return text.error();
  // The kernel ends it with a zero byte.
  if (!text->empty() && text->back() == '\0') text->pop_back();
  if (!is_process_context(*text)) return Error::refusal(EPROTO, path + " is no SELinux label");
  return text;
}

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

bool is_process_context(std::string_view text) {
  if (text.size() > kMaxLabel) return false;
  auto is_part = [](std::string_view part) {
    return !part.empty() && std::all_of(part.begin(), part.end(), [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.' ||
             c == '-';
    });
  };
  for (int part = 0; part < 3; ++part) {
    size_t end = text.find(':');
    if (!is_part(text.substr(0, end))) return false;
    if (end == std::string_view::npos) return part == 2;
    text.remove_prefix(end + 1);
  }
  // The level: sensitivities and categories.
  return !text.empty() && std::all_of(text.begin(), text.end(), [&](char c) {
    return c == ':' || c == ',' || is_part(std::string_view(&c, 1));
  });
}

std::string context_type(const std::string& context) {
  size_t role = context.find(':');
  size_t type = role == std::string::npos ? role : context.find(':', role + 1);
  if (type == std::string::npos) return context;
  return context.substr(type + 1, context.find(':', type + 1) - type - 1);
}

Result<std::string> launcher_context(const Launcher& launcher) {
  auto pid = pid_of(launcher.pidfd.get());
  if (!pid) return pid.error();
  auto context = read_context("/proc/" + std::to_string(*pid) + "/attr/current");
  // Still alive: so the number meant this process when the file was read.
  auto alive = check_alive(launcher.pidfd.get(), "launcher");
  if (!alive) return alive.error();
  return context;
}

Result<std::string> own_context() { return read_context("/proc/thread-self/attr/current"); }

}  // namespace privsep
