#include <sys/sysmacros.h>

#include "hotplug.h"
#include "hotplug_block.h"
#include "napi_addon.h"

namespace privsep {

namespace {

constexpr size_t kMaxName = 255;

Napi::Value boolean(Napi::Env env, bool& value) { return Napi::Boolean::New(env, value); }

PlugKind plug_kind(Arguments& arguments, const Napi::Value& value) {
  std::string kind = arguments.string(value, "kind", kMaxName);
  if (kind != "disk" && kind != "directory") arguments.fail(Error::refusal(EINVAL, "argument kind"));
  return kind == "disk" ? PlugKind::kDisk : PlugKind::kDirectory;
}

// { uid, gid }
PlugOwner plug_owner(Arguments& arguments, const Napi::Value& value) {
  Napi::Object owner = arguments.object(value, "owner");
  return {arguments.id(owner.Get("uid"), "owner.uid"), arguments.id(owner.Get("gid"), "owner.gid")};
}

// listPlugged(call, podsDir, podUid, launcher | null)
Napi::Value list_plugged_call(Addon& addon, const Napi::CallbackInfo& info) {
  Arguments arguments(info);
  Fd pods = arguments.fd(info[1], "podsDir");
  auto pod = arguments.pod_uid(info[2]);
  bool gone = info[3].IsNull();
  Launcher launcher = gone ? Launcher() : arguments.launcher(info[3]);
  return addon.privileged(
      arguments,
      [pods = std::move(pods), pod, gone, launcher = std::move(launcher)](Home& home, const Deadline&) {
        return list_plugged(home, pods.get(), *pod, gone ? nullptr : &launcher);
      },
      [](Napi::Env env, std::vector<PluggedEntry>& entries) -> Napi::Value {
        Napi::Array list = Napi::Array::New(env, entries.size());
        for (uint32_t i = 0; i < entries.size(); ++i) {
          Napi::Object entry = Napi::Object::New(env);
          entry.Set("name", entries[i].name);
          entry.Set("mounted", entries[i].mounted);
          entry.Set("block", entries[i].block);
          list.Set(i, entry);
        }
        return list;
      },
      PrivilegedPool::Lone::kVolume);
}

// ownPlugged(call, podsDir, podUid, launcher, volume, kind, owner)
Napi::Value own_plugged_call(Addon& addon, const Napi::CallbackInfo& info) {
  Arguments arguments(info);
  Fd pods = arguments.fd(info[1], "podsDir");
  auto pod = arguments.pod_uid(info[2]);
  Launcher launcher = arguments.launcher(info[3]);
  std::string volume = arguments.string(info[4], "volume", kMaxName);
  PlugKind kind = plug_kind(arguments, info[5]);
  PlugOwner owner = plug_owner(arguments, info[6]);
  return addon.privileged(
      arguments,
      [pods = std::move(pods), pod, launcher = std::move(launcher), volume, kind, owner](Home& home, const Deadline&) {
        return own_plugged(home, pods.get(), *pod, launcher, volume, kind, owner);
      },
      [](Napi::Env env, Owned& owned) -> Napi::Value {
        return Napi::String::New(env, owned == Owned::kAbsent    ? "absent"
                                      : owned == Owned::kChanged ? "changed"
                                      : owned == Owned::kKept    ? "kept"
                                                                 : "unchanged");
      },
      PrivilegedPool::Lone::kVolume);
}

// plugFilesystem(call, podsDir, podUid, launcher, attachmentPodUid, volume, kind, owner)
Napi::Value plug_filesystem_call(Addon& addon, const Napi::CallbackInfo& info) {
  Arguments arguments(info);
  Fd pods = arguments.fd(info[1], "podsDir");
  auto pod = arguments.pod_uid(info[2]);
  Launcher launcher = arguments.launcher(info[3]);
  auto attachment = arguments.pod_uid(info[4]);
  std::string volume = arguments.string(info[5], "volume", kMaxName);
  PlugKind kind = plug_kind(arguments, info[6]);
  PlugOwner owner = plug_owner(arguments, info[7]);
  return addon.privileged(
      arguments,
      [pods = std::move(pods), pod, launcher = std::move(launcher), attachment, volume, kind, owner](
          Home& home, const Deadline& deadline) {
        return plug_filesystem(home, pods.get(), *pod, launcher, *attachment, volume, kind, owner, deadline);
      },
      [](Napi::Env env, PlugOutcome& outcome) -> Napi::Value {
        return Napi::String::New(env, outcome == PlugOutcome::kPlugged       ? "plugged"
                                      : outcome == PlugOutcome::kPluggedKept ? "plugged-kept"
                                      : outcome == PlugOutcome::kNotReady    ? "not-ready"
                                                                             : "missing");
      },
      PrivilegedPool::Lone::kVolume);
}

Napi::Object device_object(Napi::Env env, const BlockDevice& node) {
  Napi::Object object = Napi::Object::New(env);
  object.Set("major", major(node.device));
  object.Set("minor", minor(node.device));
  object.Set("mode", node.mode);
  return object;
}

// pluggedDevice(call, podsDir, podUid, volume)
Napi::Value plugged_device_call(Addon& addon, const Napi::CallbackInfo& info) {
  Arguments arguments(info);
  Fd pods = arguments.fd(info[1], "podsDir");
  auto pod = arguments.pod_uid(info[2]);
  std::string volume = arguments.string(info[3], "volume", kMaxName);
  return addon.privileged(
      arguments,
      [pods = std::move(pods), pod, volume](Home&, const Deadline&) {
        return plugged_device(pods.get(), *pod, volume);
      },
      [](Napi::Env env, std::optional<BlockDevice>& node) -> Napi::Value {
        if (!node) return env.Null();
        return device_object(env, *node);
      });
}

// attachedDevice(call, hierarchy, podsDir, attachmentPodUid, volume)
Napi::Value attached_device_call(Addon& addon, const Napi::CallbackInfo& info) {
  Arguments arguments(info);
  DeviceHierarchy hierarchy = arguments.hierarchy(info[1]);
  const bool list = hierarchy.version == CgroupVersion::kV1;
  Fd pods = arguments.fd(info[2], "podsDir");
  auto attachment = arguments.pod_uid(info[3]);
  std::string volume = arguments.string(info[4], "volume", kMaxName);
  return addon.privileged(
      arguments,
      [hierarchy = std::move(hierarchy), pods = std::move(pods), attachment, volume](Home&, const Deadline& deadline) {
        return attached_device(hierarchy, pods.get(), *attachment, volume, deadline);
      },
      [list](Napi::Env env, AttachedDevice& found) -> Napi::Value {
        if (found.outcome == PlugOutcome::kNotReady) return Napi::String::New(env, "not-ready");
        if (found.outcome == PlugOutcome::kMissing) return Napi::String::New(env, "missing");
        Napi::Object device = device_object(env, found.node);
        Napi::Object policy = Napi::Object::New(env);
        if (list) policy.Set("list", found.list);
        if (!list) policy.Set("programs", program_list(env, found.programs));
        device.Set("policy", policy);
        return device;
      });
}

// plugBlock(call, podsDir, podUid, volume, device, owner)
Napi::Value plug_block_call(Addon& addon, const Napi::CallbackInfo& info) {
  constexpr int64_t kMaxMajor = (1 << 12) - 1;
  constexpr int64_t kMaxMinor = (1 << 20) - 1;
  Arguments arguments(info);
  Fd pods = arguments.fd(info[1], "podsDir");
  auto pod = arguments.pod_uid(info[2]);
  std::string volume = arguments.string(info[3], "volume", kMaxName);
  Napi::Object numbers = arguments.object(info[4], "device");
  BlockDevice node;
  node.device = makedev(static_cast<unsigned>(arguments.integer(numbers.Get("major"), "device.major", 0, kMaxMajor)),
                        static_cast<unsigned>(arguments.integer(numbers.Get("minor"), "device.minor", 0, kMaxMinor)));
  node.mode = static_cast<mode_t>(arguments.integer(numbers.Get("mode"), "device.mode", 0, 0777));
  PlugOwner owner = plug_owner(arguments, info[5]);
  return addon.privileged(
      arguments,
      [pods = std::move(pods), pod, volume, node, owner](Home&, const Deadline&) {
        return plug_block(pods.get(), *pod, volume, node, owner);
      },
      boolean);
}

// unplug(call, podsDir, podUid, launcher | null, name)
Napi::Value unplug_call(Addon& addon, const Napi::CallbackInfo& info) {
  Arguments arguments(info);
  Fd pods = arguments.fd(info[1], "podsDir");
  auto pod = arguments.pod_uid(info[2]);
  bool gone = info[3].IsNull();
  Launcher launcher = gone ? Launcher() : arguments.launcher(info[3]);
  std::string name = arguments.string(info[4], "name", kMaxName);
  return addon.privileged(
      arguments,
      [pods = std::move(pods), pod, gone, launcher = std::move(launcher), name](Home& home, const Deadline&) {
        return unplug(home, pods.get(), *pod, gone ? nullptr : &launcher, name);
      },
      boolean, PrivilegedPool::Lone::kUnplug);
}

}  // namespace

void define_hotplug(Addon& addon, Napi::Object exports) {
  addon.define(exports, "listPlugged", list_plugged_call);
  addon.define(exports, "ownPlugged", own_plugged_call);
  addon.define(exports, "plugFilesystem", plug_filesystem_call);
  addon.define(exports, "pluggedDevice", plugged_device_call);
  addon.define(exports, "attachedDevice", attached_device_call);
  addon.define(exports, "plugBlock", plug_block_call);
  addon.define(exports, "unplug", unplug_call);
}

}  // namespace privsep
