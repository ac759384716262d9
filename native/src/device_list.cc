#include "device_list.h"

#include <fcntl.h>
#include <unistd.h>

#include "proc_file.h"
#include "walk.h"

namespace privsep {

namespace {

constexpr size_t kMaxListBytes = 1 << 18;
constexpr size_t kMaxRule = 32;
constexpr const char* kRuleCharacters = "abcmrw0123456789:* ";

Status check_rule(const std::string& rule) {
  if (rule.empty() || rule.size() > kMaxRule || rule.find_first_not_of(kRuleCharacters) != std::string::npos) {
    return Error::refusal(EINVAL, "rule of device list");
  }
  return ok();
}

}  // namespace

Result<std::string> read_device_list(int cgroup) { return read_proc_file(cgroup, "devices.list", kMaxListBytes); }

Status change_device_list(int cgroup, const std::vector<DeviceListChange>& changes) {
  if (changes.size() > kMaxListChanges) return Error::refusal(E2BIG, "changes of device list");
  for (const DeviceListChange& change : changes) {
    auto checked = check_rule(change.rule);
    if (!checked) return checked.error();
  }
  auto allow = walk(cgroup, "devices.allow", O_WRONLY, kOneMount, "devices.allow");
  if (!allow) return allow.error();
  auto deny = walk(cgroup, "devices.deny", O_WRONLY, kOneMount, "devices.deny");
  if (!deny) return deny.error();
  bool changed = false;
  for (const DeviceListChange& change : changes) {
    int file = change.allow ? allow->get() : deny->get();
    if (::write(file, change.rule.data(), change.rule.size()) != static_cast<ssize_t>(change.rule.size())) {
      Error error = Error::last((change.allow ? "allow " : "deny ") + change.rule);
      error.unchanged = !changed;
      return error;
    }
    changed = true;
  }
  return ok();
}

}  // namespace privsep
