#include "capabilities.h"

#include <fcntl.h>
#include <linux/capability.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "fd.h"
#include "walk.h"

namespace privsep {

namespace {

constexpr size_t kMaxThreads = 4096;
constexpr int kMaxCapability = 63;

// The text after "\n<key>:" up to the end of the line.
std::optional<std::string> field(std::string_view text, const char* key) {
  std::string start = std::string("\n") + key + ":";
  size_t at = text.find(start);
  if (at == std::string_view::npos) return std::nullopt;
  at += start.size();
  return std::string(text.substr(at, text.find('\n', at) - at));
}

bool parse_number(std::string_view text, const char* key, int base, uint64_t* value) {
  auto line = field(text, key);
  if (!line) return false;
  char* end = nullptr;
  errno = 0;
  *value = ::strtoull(line->c_str(), &end, base);
  return errno == 0 && end != line->c_str() && *end == '\0';
}

bool parse_ids(std::string_view text, const char* key, std::array<uint32_t, 4>* ids) {
  auto line = field(text, key);
  if (!line) return false;
  const char* at = line->c_str();
  for (uint32_t& id : *ids) {
    char* end = nullptr;
    unsigned long value = ::strtoul(at, &end, 10);
    if (end == at) return false;
    id = static_cast<uint32_t>(value);
    at = end;
  }
  return *at == '\0';
}

}  // namespace

Result<Capabilities> current_capabilities() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2]{};
  if (::syscall(SYS_capget, &header, data) != 0) return Error::last("capget");
  auto join = [](uint32_t low, uint32_t high) { return static_cast<uint64_t>(high) << 32 | low; };
  return Capabilities{join(data[0].permitted, data[1].permitted), join(data[0].effective, data[1].effective),
                      join(data[0].inheritable, data[1].inheritable)};
}

Status set_capabilities(const Capabilities& capabilities) {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2]{};
  for (int i = 0; i < 2; ++i) {
    data[i].permitted = static_cast<uint32_t>(capabilities.permitted >> (32 * i));
    data[i].effective = static_cast<uint32_t>(capabilities.effective >> (32 * i));
    data[i].inheritable = static_cast<uint32_t>(capabilities.inheritable >> (32 * i));
  }
  if (::syscall(SYS_capset, &header, data) != 0) return Error::last("capset");
  return ok();
}

Status cut_bounding_set(uint64_t keep) {
  if (::prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) != 0) return Error::last("prctl PR_CAP_AMBIENT");
  for (int capability = 0; capability <= kMaxCapability; ++capability) {
    if ((keep >> capability & 1) != 0) continue;
    int set = ::prctl(PR_CAPBSET_READ, capability, 0, 0, 0);
    if (set < 0) break;  // beyond the last one that the kernel knows
    if (set == 1 && ::prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) != 0) return Error::last("prctl PR_CAPBSET_DROP");
  }
  return ok();
}

Result<EffectiveUser> EffectiveUser::become(uid_t user) {
  uid_t before = ::geteuid();
  if (user == 0 || user == kNobody) return Error::refusal(EINVAL, "effective user");
  if (::syscall(SYS_setresuid, -1, user, -1) != 0) return Error::last("setresuid " + std::to_string(user));
  return EffectiveUser(before);
}

// The real user is the one before, and to that the kernel lets everybody return.
EffectiveUser::~EffectiveUser() {
  if (before_ != kNobody && ::syscall(SYS_setresuid, -1, before_, -1) != 0) std::abort();
}

std::optional<ThreadStatus> parse_thread_status(std::string_view text) {
  ThreadStatus status;
  uint64_t no_new_privs = 0;
  uint64_t seccomp = 0;
  if (!parse_ids(text, "Uid", &status.uids) || !parse_ids(text, "Gid", &status.gids) ||
      !parse_number(text, "CapInh", 16, &status.inheritable) ||
      !parse_number(text, "CapPrm", 16, &status.permitted) ||
      !parse_number(text, "CapEff", 16, &status.effective) || !parse_number(text, "CapAmb", 16, &status.ambient) ||
      !parse_number(text, "NoNewPrivs", 10, &no_new_privs) || !parse_number(text, "Seccomp", 10, &seccomp)) {
    return std::nullopt;
  }
  status.no_new_privs = no_new_privs == 1;
  status.seccomp = static_cast<int>(seccomp);
  return status;
}

Result<std::optional<ThreadStatus>> thread_status(pid_t tid) {
  std::string path = "/proc/self/task/" + std::to_string(tid) + "/status";
  Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid()) {
    if (errno == ENOENT) return std::optional<ThreadStatus>();
    return Error::last("open " + path);
  }
  char buffer[8192];
  ssize_t n = ::read(file.get(), buffer, sizeof buffer);
  if (n < 0 && errno == ESRCH) return std::optional<ThreadStatus>();
  if (n < 0) return Error::last("read " + path);
  auto status = parse_thread_status(std::string_view(buffer, static_cast<size_t>(n)));
  if (!status) return Error::of(EBADMSG, "parse " + path);
  return status;
}

Result<std::vector<pid_t>> thread_ids() {
  Fd tasks(::open("/proc/self/task", O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!tasks.valid()) return Error::last("open /proc/self/task");
  auto names = read_directory(tasks.get(), kMaxThreads, "/proc/self/task");
  if (!names) return names.error();
  std::vector<pid_t> tids;
  for (const std::string& name : *names) tids.push_back(static_cast<pid_t>(::strtol(name.c_str(), nullptr, 10)));
  return tids;
}

}  // namespace privsep
