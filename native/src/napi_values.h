// Between JavaScript values and native ones. Everything that comes in is checked for type and size.
#pragma once

#include <napi.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "device_cgroup.h"
#include "device_program.h"
#include "fd.h"
#include "launcher.h"
#include "pod.h"
#include "pod_sockets.h"
#include "processes.h"
#include "result.h"

namespace privsep {

// The NativeError of binding.ts.
Napi::Value native_error(Napi::Env env, const Error& error);
// Throws it; for `return throw_error(...)`.
Napi::Value throw_error(Napi::Env env, const Error& error);

// { id, instructions }[]
Napi::Array program_list(Napi::Env env, const std::vector<AttachedProgram>& programs);

Napi::Object peer_object(Napi::Env env, pid_t pid, uid_t uid, gid_t gid);

// A process that must be alive and in the pod's cgroup; none without a pod.
struct LauncherCheck {
  Fd pidfd;
  std::optional<PodUid> pod;
};

// Reads arguments. The first that does not fit is remembered as the error; what is read after it is empty.
class Arguments {
 public:
  explicit Arguments(const Napi::CallbackInfo& info) : info_(info) {}

  const std::optional<Error>& error() const { return error_; }
  Napi::Env env() const { return info_.Env(); }
  Napi::Value at(size_t i) const { return info_[i]; }

  int64_t integer(Napi::Value value, const char* name, int64_t low, int64_t high);
  uint64_t bits(Napi::Value value, const char* name);
  bool boolean(Napi::Value value, const char* name);
  std::string string(Napi::Value value, const char* name, size_t max);
  std::string bytes(Napi::Value value, const char* name, size_t max);
  std::vector<std::string> strings(Napi::Value value, const char* name, size_t max_count, size_t max_length);
  Napi::Object object(Napi::Value value, const char* name);
  Napi::Array array(Napi::Value value, const char* name, size_t max);
  Napi::Function function(Napi::Value value, const char* name);

  int raw_fd(Napi::Value value, const char* name);
  // A duplicate: the caller may close its own while the call runs.
  Fd fd(Napi::Value value, const char* name);
  uint32_t id(Napi::Value value, const char* name);
  // Needed because a PodUid is never invalid; after an error the value means nothing and is not used.
  std::optional<PodUid> pod_uid(Napi::Value value);
  PodVolume volume(Napi::Value value);
  // { volume, path }
  VolumeEntry entry(Napi::Value value);
  Launcher launcher(Napi::Value value);
  // { pidfd, podUid } or undefined
  LauncherCheck launcher_check(Napi::Value value);
  // { root, version }
  DeviceHierarchy hierarchy(Napi::Value value);
  InodeId inode(Napi::Value value, const char* name);
  // { pid, ppid, startTicks, kernelThread, comm }
  Process process(Napi::Value value, const char* name);
  // { tid, comm }
  Thread thread(Napi::Value value, const char* name);

  void fail(Error error) {
    if (!error_) error_ = std::move(error);
  }

 private:
  void mismatch(const char* name) { fail(Error::refusal(EINVAL, std::string("argument ") + name)); }

  const Napi::CallbackInfo& info_;
  std::optional<Error> error_;
};

}  // namespace privsep
