// Credentials of threads, by raw system calls: the C library's calls are about the whole process.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "result.h"

namespace privsep {

// Bit masks of capability numbers.
struct Capabilities {
  uint64_t permitted = 0;
  uint64_t effective = 0;
  uint64_t inheritable = 0;
};

Result<Capabilities> current_capabilities();
Status set_capabilities(const Capabilities& capabilities);

// Drops from the calling thread's bounding set what `keep` lacks, and all ambient capabilities.
Status cut_bounding_set(uint64_t keep);

// The calling thread acts as another user while this lives; its capabilities stay. Never as root, which the filter of
// privileged threads refuses. Takes CAP_SETUID.
class EffectiveUser {
 public:
  static Result<EffectiveUser> become(uid_t user);
  EffectiveUser(EffectiveUser&& other) noexcept : before_(std::exchange(other.before_, kNobody)) {}
  EffectiveUser& operator=(EffectiveUser&&) = delete;
  ~EffectiveUser();

 private:
  static constexpr uid_t kNobody = static_cast<uid_t>(-1);
  explicit EffectiveUser(uid_t before) : before_(before) {}
  uid_t before_;
};

// The parts of /proc/<pid>/task/<tid>/status that privileges consist of.
struct ThreadStatus {
  std::array<uint32_t, 4> uids{};  // real, effective, saved, file system
  std::array<uint32_t, 4> gids{};
  uint64_t inheritable = 0;
  uint64_t permitted = 0;
  uint64_t effective = 0;
  uint64_t ambient = 0;
  bool no_new_privs = false;
  int seccomp = 0;  // 2: filter
};

// Nothing when a field is missing or malformed.
std::optional<ThreadStatus> parse_thread_status(std::string_view text);

// Nothing when the thread has ended.
Result<std::optional<ThreadStatus>> thread_status(pid_t tid);

// Threads of this process, at most 4096 (else E2BIG).
Result<std::vector<pid_t>> thread_ids();

}  // namespace privsep
