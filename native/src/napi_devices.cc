#include "device_cgroup.h"
#include "device_list.h"
#include "device_nodes.h"
#include "device_program.h"
#include "napi_addon.h"

namespace privsep {

namespace {

// listDeviceNodes(call, launcher)
Napi::Value list_device_nodes_call(Addon& addon, const Napi::CallbackInfo& info) {
  Arguments arguments(info);
  Launcher launcher = arguments.launcher(info[1]);
  return addon.privileged(
      arguments,
      [launcher = std::move(launcher)](Home& home, const Deadline&) { return list_device_nodes(home, launcher); },
      [](Napi::Env env, std::vector<DeviceNode>& nodes) -> Napi::Value {
        Napi::Array list = Napi::Array::New(env, nodes.size());
        for (uint32_t i = 0; i < nodes.size(); ++i) {
          Napi::Object node = Napi::Object::New(env);
          node.Set("path", nodes[i].path);
          node.Set("type", nodes[i].block ? "b" : "c");
          node.Set("major", nodes[i].major);
          node.Set("minor", nodes[i].minor);
          list.Set(i, node);
        }
        return list;
      });
}

// replaceDevicePrograms(call, hierarchy, launcher, podUid, instructions)
Napi::Value replace_device_programs_call(Addon& addon, const Napi::CallbackInfo& info) {
  Arguments arguments(info);
  DeviceHierarchy hierarchy = arguments.hierarchy(info[1]);
  Launcher launcher = arguments.launcher(info[2]);
  auto pod = arguments.pod_uid(info[3]);
  std::string instructions = arguments.bytes(info[4], "instructions", kMaxProgramBytes);
  return addon.privileged(
      arguments,
      [hierarchy = std::move(hierarchy), launcher = std::move(launcher), pod, instructions](
          Home&, const Deadline&) -> Result<bool> {
        auto cgroups = open_device_cgroups(hierarchy, launcher.pidfd.get(), *pod, "launcher");
        if (!cgroups) return cgroups.error();
        return replace_device_programs(*cgroups, instructions);
      },
      [](Napi::Env env, bool& changed) -> Napi::Value { return Napi::Boolean::New(env, changed); });
}

// attachedDevicePrograms(call, hierarchy, launcher, podUid)
Napi::Value attached_device_programs_call(Addon& addon, const Napi::CallbackInfo& info) {
  Arguments arguments(info);
  DeviceHierarchy hierarchy = arguments.hierarchy(info[1]);
  Launcher launcher = arguments.launcher(info[2]);
  auto pod = arguments.pod_uid(info[3]);
  return addon.privileged(
      arguments,
      [hierarchy = std::move(hierarchy), launcher = std::move(launcher), pod](
          Home&, const Deadline&) -> Result<std::vector<AttachedProgram>> {
        auto cgroups = open_device_cgroups(hierarchy, launcher.pidfd.get(), *pod, "launcher");
        if (!cgroups) return cgroups.error();
        return attached_device_programs(cgroups->front().get());
      },
      [](Napi::Env env, std::vector<AttachedProgram>& programs) -> Napi::Value { return program_list(env, programs); });
}

// readDeviceList(call, hierarchy, launcher, podUid)
Napi::Value read_device_list_call(Addon& addon, const Napi::CallbackInfo& info) {
  Arguments arguments(info);
  DeviceHierarchy hierarchy = arguments.hierarchy(info[1]);
  Launcher launcher = arguments.launcher(info[2]);
  auto pod = arguments.pod_uid(info[3]);
  return addon.privileged(
      arguments,
      [hierarchy = std::move(hierarchy), launcher = std::move(launcher), pod](
          Home&, const Deadline&) -> Result<std::string> {
        auto cgroups = open_device_cgroups(hierarchy, launcher.pidfd.get(), *pod, "launcher");
        if (!cgroups) return cgroups.error();
        return read_device_list(cgroups->front().get());
      },
      [](Napi::Env env, std::string& text) -> Napi::Value { return Napi::String::New(env, text); });
}

// changeDeviceList(call, hierarchy, launcher, podUid, changes)
Napi::Value change_device_list_call(Addon& addon, const Napi::CallbackInfo& info) {
  Arguments arguments(info);
  DeviceHierarchy hierarchy = arguments.hierarchy(info[1]);
  Launcher launcher = arguments.launcher(info[2]);
  auto pod = arguments.pod_uid(info[3]);
  Napi::Array list = arguments.array(info[4], "changes", kMaxListChanges);
  std::vector<DeviceListChange> changes;
  for (uint32_t i = 0; i < list.Length(); ++i) {
    Napi::Object change = arguments.object(list.Get(i), "changes");
    changes.push_back({arguments.boolean(change.Get("allow"), "allow"), arguments.string(change.Get("rule"), "rule", 32)});
  }
  return addon.privileged(
      arguments,
      [hierarchy = std::move(hierarchy), launcher = std::move(launcher), pod, changes](Home&,
                                                                                       const Deadline&) -> Status {
        auto cgroups = open_device_cgroups(hierarchy, launcher.pidfd.get(), *pod, "launcher");
        if (!cgroups) return cgroups.error();
        return change_device_list(cgroups->front().get(), changes);
      },
      [](Napi::Env env, Unit&) -> Napi::Value { return env.Undefined(); });
}

}  // namespace

void define_devices(Addon& addon, Napi::Object exports) {
  addon.define(exports, "listDeviceNodes", list_device_nodes_call);
  addon.define(exports, "replaceDevicePrograms", replace_device_programs_call);
  addon.define(exports, "attachedDevicePrograms", attached_device_programs_call);
  addon.define(exports, "readDeviceList", read_device_list_call);
  addon.define(exports, "changeDeviceList", change_device_list_call);
}

}  // namespace privsep
