#include "container_disks.h"
#include "image.h"
#include "napi_addon.h"
#include "pod_sockets.h"

namespace privsep {

namespace {

constexpr size_t kMaxName = 255;

Napi::Value boolean(Napi::Env env, bool& value) { return Napi::Boolean::New(env, value); }

// Null: the kernel-boot container.
std::optional<int> index_if_any(Arguments& arguments, const Napi::Value& value) {
  if (value.IsNull()) return std::nullopt;
  return static_cast<int>(arguments.integer(value, "index", 0, kMaxDiskIndex));
}

// containerDiskState(call, podsDir, podUid, index | null)
Napi::Value container_disk_state_call(Addon& addon, const Napi::CallbackInfo& info) {
  Arguments arguments(info);
  Fd pods = arguments.fd(info[1], "podsDir");
  auto pod = arguments.pod_uid(info[2]);
  auto index = index_if_any(arguments, info[3]);
  return addon.privileged(
      arguments,
      [pods = std::move(pods), pod, index](Home&, const Deadline& deadline) {
        return container_disk_state(pods.get(), *pod, index, deadline);
      },
      [](Napi::Env env, ContainerDiskState& state) -> Napi::Value {
        return Napi::String::New(env, state == ContainerDiskState::kReady          ? "ready"
                                      : state == ContainerDiskState::kNotListening ? "not-listening"
                                                                                   : "absent");
      });
}

// mountContainerDisk(call, podsDir, podUid, launcher, index, imagePath)
Napi::Value mount_container_disk_call(Addon& addon, const Napi::CallbackInfo& info) {
  Arguments arguments(info);
  Fd pods = arguments.fd(info[1], "podsDir");
  auto pod = arguments.pod_uid(info[2]);
  Launcher launcher = arguments.launcher(info[3]);
  auto index = static_cast<int>(arguments.integer(info[4], "index", 0, kMaxDiskIndex));
  std::string image = arguments.string(info[5], "imagePath", kMaxImagePath);
  MountLock* lock = &addon.mount_lock;
  return addon.privileged(
      arguments,
      [pods = std::move(pods), pod, launcher = std::move(launcher), index, image, lock](Home& home,
                                                                                         const Deadline& deadline) {
        return mount_container_disk(home, *lock, pods.get(), *pod, launcher, index, image, deadline);
      },
      boolean);
}

// mountKernelArtifact(call, podsDir, podUid, launcher, imagePath, name)
Napi::Value mount_kernel_artifact_call(Addon& addon, const Napi::CallbackInfo& info) {
  Arguments arguments(info);
  Fd pods = arguments.fd(info[1], "podsDir");
  auto pod = arguments.pod_uid(info[2]);
  Launcher launcher = arguments.launcher(info[3]);
  std::string image = arguments.string(info[4], "imagePath", kMaxImagePath);
  std::string name = arguments.string(info[5], "name", kMaxName);
  MountLock* lock = &addon.mount_lock;
  return addon.privileged(
      arguments,
      [pods = std::move(pods), pod, launcher = std::move(launcher), image, name, lock](Home& home,
                                                                                       const Deadline& deadline) {
        return mount_kernel_artifact(home, *lock, pods.get(), *pod, launcher, image, name, deadline);
      },
      boolean);
}

// openContainerDisk(call, podsDir, podUid, launcher, index | null, imagePath)
Napi::Value open_container_disk_call(Addon& addon, const Napi::CallbackInfo& info) {
  Arguments arguments(info);
  Fd pods = arguments.fd(info[1], "podsDir");
  auto pod = arguments.pod_uid(info[2]);
  Launcher launcher = arguments.launcher(info[3]);
  auto index = index_if_any(arguments, info[4]);
  std::string image = arguments.string(info[5], "imagePath", kMaxImagePath);
  return addon.privileged(
      arguments,
      [pods = std::move(pods), pod, launcher = std::move(launcher), index, image](Home& home, const Deadline& deadline) {
        return open_container_disk(home, pods.get(), *pod, launcher, index, image, deadline);
      },
      [](Napi::Env env, Fd& fd) -> Napi::Value { return Napi::Number::New(env, fd.release()); });
}

// unmountContainerDisks(call, podsDir, podUid, launcher | null)
Napi::Value unmount_container_disks_call(Addon& addon, const Napi::CallbackInfo& info) {
  Arguments arguments(info);
  Fd pods = arguments.fd(info[1], "podsDir");
  auto pod = arguments.pod_uid(info[2]);
  bool gone = info[3].IsNull();
  Launcher launcher = gone ? Launcher() : arguments.launcher(info[3]);
  MountLock* lock = &addon.mount_lock;
  return addon.privileged(
      arguments,
      [pods = std::move(pods), pod, gone, launcher = std::move(launcher), lock](Home& home, const Deadline&) {
        return unmount_container_disks(home, *lock, pods.get(), *pod, gone ? nullptr : &launcher);
      },
      boolean);
}

}  // namespace

void define_disks(Addon& addon, Napi::Object exports) {
  addon.define(exports, "containerDiskState", container_disk_state_call);
  addon.define(exports, "mountContainerDisk", mount_container_disk_call);
  addon.define(exports, "mountKernelArtifact", mount_kernel_artifact_call);
  addon.define(exports, "openContainerDisk", open_container_disk_call);
  addon.define(exports, "unmountContainerDisks", unmount_container_disks_call);
}

}  // namespace privsep
