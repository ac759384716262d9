#include <fcntl.h>
#include <sys/stat.h>

#include "append_only.h"
#include "cgroup_namespace.h"
#include "napi_addon.h"
#include "privileges.h"
#include "probe.h"
#include "sysctl_mount.h"
#include "tun_device.h"

namespace privsep {

namespace {

Napi::Value start_privileged_threads(Addon& addon, const Napi::CallbackInfo& info) {
  Arguments arguments(info);
  Napi::Object options = arguments.object(info[0], "options");
  auto count = static_cast<unsigned>(arguments.integer(options.Get("count"), "count", 1, PrivilegedPool::kMaxThreads));
  uint64_t permitted = arguments.bits(options.Get("permitted"), "permitted");
  if (arguments.error()) return throw_error(info.Env(), *arguments.error());
  if (addon.pool) return throw_error(info.Env(), Error::of(EALREADY, "start privileged threads"));
  auto pool = PrivilegedPool::start(count, permitted);
  if (!pool) return throw_error(info.Env(), pool.error());
  addon.pool = std::move(*pool);
  return info.Env().Undefined();
}

Napi::Value make_network_sysctls_writable_call(Addon&, const Napi::CallbackInfo& info) {
  auto done = make_network_sysctls_writable();
  if (!done) return throw_error(info.Env(), done.error());
  return info.Env().Undefined();
}

Napi::Value join_cgroup_namespace_call(Addon& addon, const Napi::CallbackInfo& info) {
  Arguments arguments(info);
  std::string path = arguments.string(info[0], "path", 4095);
  if (arguments.error()) return throw_error(info.Env(), *arguments.error());
  if (addon.pool) return throw_error(info.Env(), Error::of(EINVAL, "join cgroup namespace after privileged threads started"));
  auto joined = join_cgroup_namespace(path);
  if (!joined) return throw_error(info.Env(), joined.error());
  return info.Env().Undefined();
}

Napi::Value drop_privileges(Addon& addon, const Napi::CallbackInfo& info) {
  Arguments arguments(info);
  Napi::Object options = arguments.object(info[0], "options");
  uid_t uid = arguments.id(options.Get("uid"), "uid");
  gid_t gid = arguments.id(options.Get("gid"), "gid");
  Napi::Array list = arguments.array(options.Get("groups"), "groups", 32);
  std::vector<gid_t> groups;
  for (uint32_t i = 0; i < list.Length(); ++i) groups.push_back(arguments.id(list.Get(i), "groups"));
  if (arguments.error()) return throw_error(info.Env(), *arguments.error());
  if (!addon.pool) return throw_error(info.Env(), Error::of(EINVAL, "drop privileges before privileged threads started"));
  if (addon.user_dropped) return throw_error(info.Env(), Error::of(EALREADY, "drop privileges"));
  auto dropped = addon.pool->drop_user(uid, gid, groups);
  if (!dropped) return throw_error(info.Env(), dropped.error());
  addon.user_dropped = true;
  return info.Env().Undefined();
}

Napi::Value lock_down(Addon& addon, const Napi::CallbackInfo& info) {
  Arguments arguments(info);
  bool privileged = arguments.boolean(arguments.object(info[0], "options").Get("privileged"), "privileged");
  if (arguments.error()) return throw_error(info.Env(), *arguments.error());
  if (addon.locked_down) return throw_error(info.Env(), Error::of(EALREADY, "lock down"));
  if (privileged != addon.user_dropped) {
    return throw_error(info.Env(), Error::of(EINVAL, privileged ? "lock down before privileges were dropped"
                                                                : "lock down without the privileged threads"));
  }
  auto filter = addon.labelled_taps.valid() ? FilterProfile::kPrivilegedWithProcesses : FilterProfile::kPrivileged;
  auto locked = privileged ? addon.pool->lock_down(filter) : confine_threads(FilterProfile::kAgent, {});
  if (!locked) return throw_error(info.Env(), locked.error());
  addon.locked_down = true;
  return info.Env().Undefined();
}

// labelTaps(): what is in the way of an own device, or nothing
Napi::Value label_taps(Addon& addon, const Napi::CallbackInfo& info) {
  if (addon.locked_down) return throw_error(info.Env(), Error::of(EALREADY, "label taps after lock down"));
  auto own = make_labelled_tun_device();
  if (own) {
    addon.labelled_taps = std::move(*own);
    return info.Env().Undefined();
  }
  addon.labelled_taps.reset(::open("/dev/net", O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!addon.labelled_taps.valid()) return throw_error(info.Env(), Error::last("open /dev/net"));
  return native_error(info.Env(), own.error());
}

Napi::Value close_fd(Addon&, const Napi::CallbackInfo& info) {
  Arguments arguments(info);
  int fd = arguments.raw_fd(info[0], "fd");
  if (arguments.error()) return throw_error(info.Env(), *arguments.error());
  if (::close(fd) != 0 && errno != EINTR) return throw_error(info.Env(), Error::last("close"));
  return info.Env().Undefined();
}

Napi::Value namespace_id(Addon&, const Napi::CallbackInfo& info) {
  Arguments arguments(info);
  std::string path = arguments.string(info[0], "path", 4095);
  if (arguments.error()) return throw_error(info.Env(), *arguments.error());
  struct stat st {};
  if (::stat(path.c_str(), &st) != 0) return throw_error(info.Env(), Error::last("stat " + path));
  Napi::Object id = Napi::Object::New(info.Env());
  id.Set("dev", Napi::BigInt::New(info.Env(), static_cast<uint64_t>(st.st_dev)));
  id.Set("ino", Napi::BigInt::New(info.Env(), static_cast<uint64_t>(st.st_ino)));
  return id;
}

// probeKernel()
Napi::Value probe_kernel_call(Addon&, const Napi::CallbackInfo& info) {
  Napi::Array list = Napi::Array::New(info.Env());
  for (const KernelFeature& feature : probe_kernel()) {
    Napi::Object object = Napi::Object::New(info.Env());
    object.Set("name", feature.name);
    const char* error = feature.error == 0 ? "" : ::strerrorname_np(feature.error);
    object.Set("error", error != nullptr ? error : "unknown");
    list.Set(list.Length(), object);
  }
  return list;
}

// setAppendOnly(call, fd, on)
Napi::Value set_append_only_call(Addon& addon, const Napi::CallbackInfo& info) {
  Arguments arguments(info);
  Fd file = arguments.fd(info[1], "fd");
  bool on = arguments.boolean(info[2], "on");
  return addon.privileged(
      arguments, [file = std::move(file), on](Home&, const Deadline&) { return set_append_only(file.get(), on); },
      [](Napi::Env env, bool& has_flag) -> Napi::Value { return Napi::Boolean::New(env, has_flag); });
}

}  // namespace

void define_privileges(Addon& addon, Napi::Object exports) {
  addon.define(exports, "makeNetworkSysctlsWritable", make_network_sysctls_writable_call);
  addon.define(exports, "probeKernel", probe_kernel_call);
  addon.define(exports, "joinCgroupNamespace", join_cgroup_namespace_call);
  addon.define(exports, "labelTaps", label_taps);
  addon.define(exports, "startPrivilegedThreads", start_privileged_threads);
  addon.define(exports, "dropPrivileges", drop_privileges);
  addon.define(exports, "lockDown", lock_down);
  addon.define(exports, "close", close_fd);
  addon.define(exports, "namespaceId", namespace_id);
  addon.define(exports, "setAppendOnly", set_append_only_call);
}

}  // namespace privsep
