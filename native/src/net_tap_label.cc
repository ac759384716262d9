#include "net_tap_label.h"

#include <fcntl.h>
#include <linux/capability.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>

#include "deadline.h"
#include "label.h"
#include "short_process.h"

namespace privsep {
namespace {

// A tap takes a millisecond; what takes longer waits for the kernel's networking lock.
constexpr int64_t kMaxMs = 5000;

enum Step : int { kConfine, kLabel, kDevice, kRequests, kDone = kRequests + TapRequests::kCount };

// All that the process shares with its maker. A pipe would be subject to the policy, too.
struct Report {
  std::atomic<int> step{kConfine};
  std::atomic<int> error{0};
};
static_assert(std::atomic<int>::is_always_lock_free, "used between processes");

class SharedReport {
 public:
  SharedReport() : page_(::mmap(nullptr, sizeof(Report), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) {
    if (page_ != MAP_FAILED) report_ = new (page_) Report;
  }
  ~SharedReport() {
    if (page_ != MAP_FAILED) ::munmap(page_, sizeof(Report));
  }
  SharedReport(const SharedReport&) = delete;
  SharedReport& operator=(const SharedReport&) = delete;
  Report* get() const { return report_; }

 private:
  void* page_;
  Report* report_ = nullptr;
};

struct Task {
  Report* report;
  TapRequests* requests;
  const char* context;
  size_t context_size;
  bool required;
  int directory;
};

// Everything below until the end of this part runs in the process: async-signal-safe calls only.

bool close_all_but(int kept) {
  auto number = static_cast<unsigned>(kept);
  return (number == 0 || ::syscall(SYS_close_range, 0, number - 1, 0) == 0) &&
         ::syscall(SYS_close_range, number + 1, ~0U, 0) == 0;
}

// The file is a task's own in every procfs whose pid namespace has a number for it; the kernel wants it opened by the
// process that writes.
int take_label(const char* context, size_t size) {
  int fd = ::open("/proc/thread-self/attr/current", O_WRONLY | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return errno;
  ssize_t written = ::write(fd, context, size);
  int error = written == static_cast<ssize_t>(size) ? 0 : written < 0 ? errno : EIO;
  ::close(fd);
  return error;
}

int run_step(const Task& task, int step, int* tun) {
  switch (step) {
    case kConfine:
      return confine_to(task.directory);
    case kLabel: {
      int error = take_label(task.context, task.context_size);
      return task.required ? error : 0;
    }
    case kDevice:
      *tun = open_tun_device(task.directory, kTunName);
      return *tun >= 0 ? 0 : errno;
    default:
      return task.requests->make(*tun, step - kRequests);
  }
}

int run_task(void* argument) {
  const Task& task = *static_cast<const Task*>(argument);
  int tun = -1;
  for (int step = kConfine; step < kDone; ++step) {
    task.report->step = step;
    int error = run_step(task, step, &tun);
    if (error != 0) {
      task.report->error = error;
      return 1;
    }
  }
  task.report->step = kDone;
  return 0;
}

// In the maker again.

std::string step_name(int step, const std::string& name) {
  if (step == kConfine) return "give up privileges";
  if (step == kLabel) return "take the label";
  if (step == kDevice) return "open the tun device";
  return std::string(TapRequests::operation(step - kRequests)) + " " + name;
}

std::string missing_rule(const std::string& launcher) {
  auto own = own_context();
  std::string domain = own ? context_type(*own) : "the helper's domain";
  return ": the SELinux policy of the node lacks (allow " + domain + " " + context_type(launcher) +
         " (process (dyntransition)))";
}

}  // namespace

int confine_to(int descriptor) {
  if (!close_all_but(descriptor)) return errno;
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct caps[2]{};
  caps[0].permitted = caps[0].effective = uint32_t{1} << CAP_NET_ADMIN;
  return ::syscall(SYS_capset, &header, caps) == 0 ? 0 : errno;
}

Status make_labelled_tap(TapRequests requests, const std::string& name, const TapLabel& label, bool* may_exist) {
  *may_exist = false;
  SharedReport shared;
  Report* report = shared.get();
  if (report == nullptr) return Error::last("mmap");
  Task task{report, &requests, label.context.c_str(), label.context.size(), label.required, label.device_directory};
  auto deadline = Deadline::after_ms(std::min<int64_t>(kMaxMs, label.deadline.remaining_ms()));
  auto code = run_short_process(run_task, &task, deadline);
  const int step = report->step;
  const int error = report->error;
  if (step == kDone) return ok();
  *may_exist = error == 0 && step == kRequests + TapRequests::kPersist;
  const std::string what = "make tap " + name + " as " + label.context;
  if (error != 0) {
    bool refused = step == kLabel && error == EACCES;
    return Error::of(error, what + ", " + step_name(step, name) + (refused ? missing_rule(label.context) : ""));
  }
  if (code) return Error::of(ECANCELED, what + ": exit code " + std::to_string(*code));
  return Error::of(code.error().code, what + ", " + step_name(step, name) + ": " + code.error().operation);
}

}  // namespace privsep
