#include <algorithm>

#include "label.h"
#include "napi_addon.h"

namespace privsep {

namespace {

Napi::Value undefined(Napi::Env env, Unit&) { return env.Undefined(); }

const char* entry_name(EntryState state) {
  switch (state) {
    case EntryState::kAbsent:
      return "absent";
    case EntryState::kPresent:
      return "present";
    case EntryState::kRefused:
      return "refused";
  }
  return "refused";
}

Napi::Value pod_state_object(Napi::Env env, PodState& state) {
  Napi::Object object = Napi::Object::New(env);
  object.Set("directory", state.directory);
  object.Set("launcherSocket", entry_name(state.launcher_socket));
  object.Set("unresponsiveMarker", state.unresponsive_marker);
  Napi::Array disks = Napi::Array::New(env, state.container_disks.size());
  for (uint32_t i = 0; i < state.container_disks.size(); ++i) disks.Set(i, state.container_disks[i]);
  object.Set("containerDisks", disks);
  object.Set("kernelBoot", state.kernel_boot);
  object.Set("containerDiskBinary", state.container_disk_binary);
  return object;
}

Napi::Value launcher_object(Napi::Env env, Launcher& launcher) {
  Napi::Object object = peer_object(env, launcher.pid, launcher.uid, launcher.gid);
  object.Set("pidfd", launcher.pidfd.release());
  object.Set("mntns", launcher.mntns.release());
  object.Set("netns", launcher.netns.release());
  return object;
}

// podState(call, podsDir, podUid)
Napi::Value pod_state_call(Addon& addon, const Napi::CallbackInfo& info) {
  Arguments arguments(info);
  Fd pods = arguments.fd(info[1], "podsDir");
  auto pod = arguments.pod_uid(info[2]);
  return addon.privileged(
      arguments, [pods = std::move(pods), pod](Home&, const Deadline&) { return pod_state(pods.get(), *pod); },
      pod_state_object);
}

// pinLauncher(call, podsDir, podUid)
Napi::Value pin_launcher_call(Addon& addon, const Napi::CallbackInfo& info) {
  Arguments arguments(info);
  Fd pods = arguments.fd(info[1], "podsDir");
  auto pod = arguments.pod_uid(info[2]);
  return addon.privileged(
      arguments,
      [pods = std::move(pods), pod](Home&, const Deadline& deadline) {
        return pin_launcher(pods.get(), *pod, deadline);
      },
      launcher_object);
}

// checkLauncher(call, launcher, podUid)
Napi::Value check_launcher_call(Addon& addon, const Napi::CallbackInfo& info) {
  Arguments arguments(info);
  Launcher launcher = arguments.launcher(info[1]);
  auto pod = arguments.pod_uid(info[2]);
  return addon.privileged(
      arguments,
      [launcher = std::move(launcher), pod](Home&, const Deadline&) {
        return check_process(launcher.pidfd.get(), *pod, "launcher");
      },
      undefined);
}

// launcherRootLabel(call, launcher)
Napi::Value launcher_root_label_call(Addon& addon, const Napi::CallbackInfo& info) {
  Arguments arguments(info);
  Launcher launcher = arguments.launcher(info[1]);
  return addon.privileged(
      arguments,
      [launcher = std::move(launcher)](Home& home, const Deadline&) { return launcher_root_label(home, launcher); },
      [](Napi::Env env, std::string& label) -> Napi::Value {
        Napi::Uint8Array bytes = Napi::Uint8Array::New(env, label.size());
        std::copy(label.begin(), label.end(), bytes.Data());
        return bytes;
      });
}

}  // namespace

void define_pods(Addon& addon, Napi::Object exports) {
  addon.define(exports, "podState", pod_state_call);
  addon.define(exports, "pinLauncher", pin_launcher_call);
  addon.define(exports, "checkLauncher", check_launcher_call);
  addon.define(exports, "launcherRootLabel", launcher_root_label_call);
}

}  // namespace privsep
