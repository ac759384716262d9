#include "housekeeping.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <vector>

#include "capabilities.h"
#include "cgroup.h"
#include "proc_file.h"
#include "walk.h"

namespace privsep {

namespace {

constexpr size_t kMaxFile = 1024 * 1024;
constexpr size_t kMaxComm = 64;
// Threads come and go while they are moved. A pass that finds none to move ends it.
constexpr int kMaxPasses = 16;

// A file of a cgroup; `what` in errors is its name.
Result<std::string> read_file(int cgroup, const char* name) { return read_proc_file(cgroup, name, kMaxFile); }

Status write_open(int file, std::string_view text, const std::string& what) {
  ssize_t n = ::write(file, text.data(), text.size());
  if (n < 0) return Error::last("write " + what);
  if (static_cast<size_t>(n) != text.size()) return Error::of(EIO, "write " + what);
  return ok();
}

Result<Fd> open_for_writing(int cgroup, const char* name) {
  Fd file(::openat(cgroup, name, O_WRONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!file.valid()) return Error::last(std::string("open ") + name);
  return file;
}

Status write_file(int cgroup, const char* name, std::string_view text) {
  auto file = open_for_writing(cgroup, name);
  if (!file) return file.error();
  return write_open(file->get(), text, name);
}

bool is_blank(std::string_view text) { return text.find_first_not_of(" \n") == text.npos; }

// Words are separated by blanks, as in cgroup.controllers.
bool has_word(std::string_view text, std::string_view word) {
  while (!text.empty()) {
    size_t end = std::min(text.find_first_of(" \n"), text.size());
    if (text.substr(0, end) == word) return true;
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return false;
}

// Sets what is to be done once, and notes whether anything was.
class Change {
 public:
  explicit Change(bool* changed) : changed_(changed) {}

  Status directory(int cgroup, const char* name) {
    if (::mkdirat(cgroup, name, 0755) == 0) {
      *changed_ = true;
    } else if (errno != EEXIST) {
      return Error::last(std::string("mkdir ") + name);
    }
    return ok();
  }

  Status write(int cgroup, const char* name, std::string_view text) {
    auto written = write_file(cgroup, name, text);
    *changed_ = *changed_ || written;
    return written;
  }

  // cgroup v1: a cpuset without CPUs or memory takes no threads.
  Status copy_where_empty(int from, int to, const char* name) {
    auto there = read_file(to, name);
    if (!there) return there.error();
    if (!is_blank(*there)) return ok();
    auto text = read_file(from, name);
    if (!text) return text.error();
    return write(to, name, *text);
  }

  // cgroup v2.
  Status enable_cpuset(int cgroup) {
    auto enabled = read_file(cgroup, "cgroup.subtree_control");
    if (!enabled) return enabled.error();
    return has_word(*enabled, "cpuset") ? ok() : write(cgroup, "cgroup.subtree_control", "+cpuset");
  }

  Status make_threaded(int cgroup) {
    auto type = read_file(cgroup, "cgroup.type");
    if (!type) return type.error();
    return has_word(*type, "threaded") ? ok() : write(cgroup, "cgroup.type", "threaded");
  }

 private:
  bool* changed_;
};

Result<Fd> make_child(int cgroup, bool unified, Change change) {
  if (unified) {
    auto enabled = change.enable_cpuset(cgroup);
    if (!enabled) return enabled.error();
  }
  auto made = change.directory(cgroup, kHousekeeping);
  if (!made) return made.error();
  auto child = walk(cgroup, kHousekeeping, O_PATH | O_DIRECTORY, kNoLinks, kHousekeeping);
  if (!child) return child;
  Status ready = ok();
  if (unified) {
    ready = change.make_threaded(child->get());
    if (ready) ready = change.enable_cpuset(child->get());
  } else {
    ready = change.copy_where_empty(cgroup, child->get(), "cpuset.mems");
    if (ready) ready = change.copy_where_empty(cgroup, child->get(), "cpuset.cpus");
  }
  if (!ready) return ready.error();
  return child;
}

Result<CpuList> read_cpus(int cgroup, const char* name) {
  auto text = read_file(cgroup, name);
  if (!text) return text.error();
  auto cpus = parse_cpu_list(*text);
  if (!cpus) return Error::of(EBADMSG, std::string("parse ") + name);
  return *cpus;
}

Status check_cpus(int cgroup, bool unified, const CpuList& cpus) {
  auto allowed = read_cpus(cgroup, unified ? "cpuset.cpus.effective" : "cpuset.cpus");
  if (!allowed) return allowed.error();
  bool inside = std::includes(allowed->begin(), allowed->end(), cpus.begin(), cpus.end());
  return inside ? ok() : Status(Error::refusal(EINVAL, "CPUs of the launcher's cgroup"));
}

// By its name, as QEMU gives it. KVM and MSHV are the hypervisors of KubeVirt.
bool is_vcpu(std::string_view comm) {
  bool hypervisor = comm.find("KVM") != comm.npos || comm.find("MSHV") != comm.npos;
  return hypervisor && comm.find("CPU ") != comm.npos;
}

// Threads of the cgroup that are no vCPUs. One that has ended meanwhile is left out.
Result<std::vector<std::string>> threads_to_move(int cgroup, const char* list) {
  auto text = read_file(cgroup, list);
  if (!text) return text.error();
  std::vector<std::string> threads;
  std::string_view rest = *text;
  while (!rest.empty()) {
    size_t end = std::min(rest.find('\n'), rest.size());
    std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    pid_t tid = 0;
    auto [stop, error] = std::from_chars(line.data(), line.data() + line.size(), tid);
    if (error != std::errc() || stop != line.data() + line.size()) {
      return Error::of(EBADMSG, std::string("parse ") + list);
    }
    // A thread of another pid namespace than the helper's, whose number it cannot know.
    if (tid <= 0) return Error::refusal(ESRCH, std::string("thread of ") + list + " is in another pid namespace");
    auto comm = read_proc_file("/proc/" + std::to_string(tid) + "/comm", kMaxComm + 1);
    if (!comm && (comm.error().code == ENOENT || comm.error().code == ESRCH)) continue;
    if (!comm) return comm.error();
    if (!is_vcpu(*comm)) threads.emplace_back(line);
  }
  return threads;
}

// Until the cgroup has no thread left to move, as new ones may appear beside those that are being moved.
Status move_threads(int cgroup, int child, bool unified, uid_t user, Isolation* isolation, const Deadline& deadline) {
  const char* list = unified ? "cgroup.threads" : "tasks";
  // cgroup v1 lets root move a thread, or the thread's own user, and asks for no capability.
  std::optional<EffectiveUser> as_user;
  if (!unified && user != 0) {
    auto become = EffectiveUser::become(user);
    if (!become) return become.error();
    as_user.emplace(std::move(*become));
  }
  auto target = open_for_writing(child, list);
  if (!target) return target.error();
  for (int pass = 0; pass < kMaxPasses; ++pass) {
    auto threads = threads_to_move(cgroup, list);
    if (!threads) return threads.error();
    if (threads->empty()) return ok();
    for (const std::string& tid : *threads) {
      if (deadline.passed()) return Error::of(ETIMEDOUT, "move threads");
      auto moved = write_open(target->get(), tid, std::string(list) + " of " + kHousekeeping);
      if (!moved && moved.error().code == ESRCH) continue;  // it has ended
      if (!moved) return moved;
      ++isolation->moved;
      isolation->changed = true;
    }
  }
  return Error::of(EAGAIN, "move threads: new ones keep appearing");
}

Status isolate(int cgroup, bool unified, uid_t user, const CpuList& cpus, Isolation* isolation,
               const Deadline& deadline) {
  if (!cpus.empty()) {
    auto inside = check_cpus(cgroup, unified, cpus);
    if (!inside) return inside;
  }
  Change change(&isolation->changed);
  auto child = make_child(cgroup, unified, change);
  if (!child) return child.error();
  if (cpus.empty()) return ok();
  auto now = read_cpus(child->get(), "cpuset.cpus");
  if (!now) return now.error();
  if (*now != cpus) {
    auto written = change.write(child->get(), "cpuset.cpus", format_cpu_list(cpus));
    if (!written) return written;
  }
  return move_threads(cgroup, child->get(), unified, user, isolation, deadline);
}

// The root of the hierarchy that has the cpusets.
Result<Fd> open_hierarchy(int cgroup_root, bool unified) {
  const char* name = unified ? "." : "cpuset";
  Fd root(::openat(cgroup_root, name, O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!root.valid()) return Error::last(std::string("open cgroup hierarchy ") + name);
  struct statfs fs {};
  if (::fstatfs(root.get(), &fs) != 0) return Error::last("fstatfs cgroup hierarchy");
  if (static_cast<long>(fs.f_type) != (unified ? CGROUP2_SUPER_MAGIC : CGROUP_SUPER_MAGIC)) {
    return Error::refusal(EINVAL, "file system of the cgroup hierarchy");
  }
  return root;
}

}  // namespace

Result<Isolation> isolate_emulator(int cgroup_root, const PodUid& pod, const Launcher& launcher, uid_t user,
                                   const CpuList& cpus, const Deadline& deadline) {
  auto pid = pid_of(launcher.pidfd.get());
  if (!pid) return pid.error();
  auto text = read_proc_file("/proc/" + std::to_string(*pid) + "/cgroup", kMaxFile);
  auto alive = check_alive(launcher.pidfd.get(), "launcher");
  if (!alive) return alive.error();
  if (!text) return text.error();
  bool unified = !has_hierarchy(*text, "cpuset");
  auto path = container_cgroup(*text, unified ? "" : "cpuset", pod.text());
  if (!path) return path.error();
  auto root = open_hierarchy(cgroup_root, unified);
  if (!root) return root.error();
  auto cgroup = walk(root->get(), *path, O_PATH | O_DIRECTORY, kOneMount, "cgroup of the launcher");
  if (!cgroup) return cgroup.error();
  return isolate_threads(cgroup->get(), unified, user, cpus, deadline);
}

Result<Isolation> isolate_threads(int cgroup, bool unified, uid_t user, const CpuList& cpus, const Deadline& deadline) {
  Isolation isolation;
  auto done = isolate(cgroup, unified, user, cpus, &isolation, deadline);
  if (done) return isolation;
  Error error = done.error();
  error.unchanged = error.unchanged && !isolation.changed;
  return error;
}

}  // namespace privsep
