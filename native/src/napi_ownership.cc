#include "devices.h"
#include "napi_addon.h"
#include "vmi_disks.h"

namespace privsep {

namespace {

constexpr size_t kMaxName = 255;

Napi::Value boolean(Napi::Env env, bool& value) { return Napi::Boolean::New(env, value); }

// claimDevices(call, launcher, devices, volumes, uid, gid)
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
  auto volumes = arguments.strings(info[3], "volumes", kMaxClaimedVolumes, kMaxName);
  uid_t uid = arguments.id(info[4], "uid");
  gid_t gid = arguments.id(info[5], "gid");
  return addon.privileged(
      arguments,
      [launcher = std::move(launcher), devices, volumes, uid, gid](
          Home& home, const Deadline&) -> Result<std::vector<ClaimOutcome>> {
        auto numbers = read_device_numbers();
        if (!numbers) return numbers.error();
        return claim_devices(home, launcher, *numbers, devices, volumes, uid, gid);
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
      [launcher = std::move(launcher)](Home& home, const Deadline&) -> Result<std::vector<ObservedDevice>> {
        auto numbers = read_device_numbers();
        if (!numbers) return numbers.error();
        return observe_devices(home, launcher, *numbers);
      },
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

VmiDisk disk_argument(Arguments& arguments, Napi::Value volume, Napi::Value file) {
  auto disk = VmiDisk::parse(arguments.string(volume, "volume", kMaxName), arguments.string(file, "file", kMaxName));
  if (disk) return *disk;
  arguments.fail(disk.error());
  return VmiDisk{};
}

// vmiDiskState(call, launcher, volume, file)
Napi::Value vmi_disk_state_call(Addon& addon, const Napi::CallbackInfo& info) {
  Arguments arguments(info);
  Launcher launcher = arguments.launcher(info[1]);
  VmiDisk disk = disk_argument(arguments, info[2], info[3]);
  return addon.privileged(
      arguments,
      [launcher = std::move(launcher), disk](Home& home, const Deadline&) {
        return vmi_disk_state(home, launcher, disk);
      },
      [](Napi::Env env, VmiDiskState& state) -> Napi::Value {
        Napi::Object object = Napi::Object::New(env);
        object.Set("exists", state.exists);
        object.Set("availableBytes", Napi::BigInt::New(env, state.available));
        return object;
      },
      PrivilegedPool::Lone::kVolume);
}

// createVmiDisk(call, launcher, volume, file, size, uid, gid)
Napi::Value create_vmi_disk_call(Addon& addon, const Napi::CallbackInfo& info) {
  Arguments arguments(info);
  Launcher launcher = arguments.launcher(info[1]);
  VmiDisk disk = disk_argument(arguments, info[2], info[3]);
  uint64_t size = arguments.bits(info[4], "size");
  uid_t uid = arguments.id(info[5], "uid");
  gid_t gid = arguments.id(info[6], "gid");
  return addon.privileged(
      arguments,
      [launcher = std::move(launcher), disk, size, uid, gid](Home& home, const Deadline&) {
        return create_vmi_disk(home, launcher, disk, size, uid, gid);
      },
      boolean, PrivilegedPool::Lone::kVolume);
}

// claimVmiDisks(call, podsDir, podUid, launcher, volume, uid, gid)
Napi::Value claim_vmi_disks_call(Addon& addon, const Napi::CallbackInfo& info) {
  Arguments arguments(info);
  Fd pods = arguments.fd(info[1], "podsDir");
  auto pod = arguments.pod_uid(info[2]);
  Launcher launcher = arguments.launcher(info[3]);
  VmiDisk disk = disk_argument(arguments, info[4], Napi::String::New(info.Env(), ""));
  uid_t uid = arguments.id(info[5], "uid");
  gid_t gid = arguments.id(info[6], "gid");
  return addon.privileged(
      arguments,
      [pods = std::move(pods), pod, launcher = std::move(launcher), disk, uid, gid](Home& home, const Deadline&) {
        return claim_vmi_disks(home, pods.get(), *pod, launcher, disk.volume, uid, gid);
      },
      [](Napi::Env env, VolumeClaim& claim) -> Napi::Value {
        return Napi::String::New(env, claim == VolumeClaim::kClaimed        ? "claimed"
                                      : claim == VolumeClaim::kAlreadyOwned ? "already-owned"
                                      : claim == VolumeClaim::kKept         ? "kept"
                                                                            : "foreign");
      },
      PrivilegedPool::Lone::kVolume);
}

}  // namespace

void define_ownership(Addon& addon, Napi::Object exports) {
  addon.define(exports, "claimDevices", claim_devices_call);
  addon.define(exports, "observeDevices", observe_devices_call);
  addon.define(exports, "vmiDiskState", vmi_disk_state_call);
  addon.define(exports, "createVmiDisk", create_vmi_disk_call);
  addon.define(exports, "claimVmiDisks", claim_vmi_disks_call);
}

}  // namespace privsep
