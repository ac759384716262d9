#include <algorithm>

#include "devices.h"
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
  object.Set("pidfdInode", Napi::BigInt::New(env, launcher.pidfd_inode));
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

// claimDevices(call, launcher, devices, uid, gid)
Napi::Value claim_devices_call(Addon& addon, const Napi::CallbackInfo& info) {
  Arguments arguments(info);
  Launcher launcher = arguments.launcher(info[1]);
  std::vector<ClaimableDevice> devices;
  for (const std::string& name : arguments.strings(info[2], "devices", 16, 64)) {
    auto device = parse_device(name);
    if (device) {
      devices.push_back(*device);
    } else {
      arguments.fail(device.error());
    }
  }
  uid_t uid = arguments.id(info[3], "uid");
  gid_t gid = arguments.id(info[4], "gid");
  return addon.privileged(
      arguments,
      [launcher = std::move(launcher), devices, uid, gid](Home& home, const Deadline&) {
        return claim_devices(home, launcher, devices, uid, gid);
      },
      [](Napi::Env env, std::vector<ClaimOutcome>& outcomes) -> Napi::Value {
        Napi::Array list = Napi::Array::New(env, outcomes.size());
        for (uint32_t i = 0; i < outcomes.size(); ++i) {
          list.Set(i, outcomes[i] == ClaimOutcome::kClaimed        ? "claimed"
                      : outcomes[i] == ClaimOutcome::kAlreadyOwned ? "already-owned"
                                                                   : "missing");
        }
        return list;
      });
}

const char* node_state_name(NodeState state) {
  switch (state) {
    case NodeState::kMissing:
      return "missing";
    case NodeState::kPresent:
      return "present";
    case NodeState::kOther:
      return "other";
    case NodeState::kHost:
      return "host";
  }
  return "other";
}

// observeDevices(call, launcher)
Napi::Value observe_devices_call(Addon& addon, const Napi::CallbackInfo& info) {
  Arguments arguments(info);
  Launcher launcher = arguments.launcher(info[1]);
  return addon.privileged(
      arguments,
      [launcher = std::move(launcher)](Home& home, const Deadline&) { return observe_devices(home, launcher); },
      [](Napi::Env env, std::vector<ObservedDevice>& devices) -> Napi::Value {
        Napi::Array list = Napi::Array::New(env, devices.size());
        for (uint32_t i = 0; i < devices.size(); ++i) {
          Napi::Object device = Napi::Object::New(env);
          device.Set("device", devices[i].name);
          device.Set("state", node_state_name(devices[i].state));
          device.Set("uid", devices[i].uid);
          device.Set("gid", devices[i].gid);
          device.Set("mode", devices[i].mode);
          list.Set(i, device);
        }
        return list;
      });
}

}  // namespace

void define_pods(Addon& addon, Napi::Object exports) {
  addon.define(exports, "podState", pod_state_call);
  addon.define(exports, "pinLauncher", pin_launcher_call);
  addon.define(exports, "checkLauncher", check_launcher_call);
  addon.define(exports, "launcherRootLabel", launcher_root_label_call);
  addon.define(exports, "claimDevices", claim_devices_call);
  addon.define(exports, "observeDevices", observe_devices_call);
}

}  // namespace privsep
