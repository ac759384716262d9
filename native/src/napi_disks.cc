#include "container_disks.h"
#include "image.h"
#include "napi_addon.h"
#include "pod_sockets.h"

namespace privsep {

namespace {

constexpr size_t kMaxName = 255;
// Of one call: all container disks, kernel and initrd.
constexpr size_t kMaxImages = kMaxDiskIndex + 3;

Napi::Value boolean(Napi::Env env, bool& value) { return Napi::Boolean::New(env, value); }

// Null: the kernel-boot container.
std::optional<int> index_if_any(Arguments& arguments, const Napi::Value& value) {
  if (value.IsNull()) return std::nullopt;
  return static_cast<int>(arguments.integer(value, "index", 0, kMaxDiskIndex));
}

std::vector<std::optional<int>> indexes_of(Arguments& arguments, const Napi::Value& value) {
  Napi::Array list = arguments.array(value, "indexes", kMaxImages);
  std::vector<std::optional<int>> indexes;
  for (uint32_t i = 0; !arguments.error() && i < list.Length(); ++i) {
    indexes.push_back(index_if_any(arguments, list.Get(i)));
  }
  return indexes;
}

// { index | null, imagePath, name }[]
std::vector<ImageMount> images_of(Arguments& arguments, const Napi::Value& value) {
  Napi::Array list = arguments.array(value, "images", kMaxImages);
  std::vector<ImageMount> images;
  for (uint32_t i = 0; !arguments.error() && i < list.Length(); ++i) {
    Napi::Object image = arguments.object(list.Get(i), "image");
    ImageMount mount;
    mount.index = index_if_any(arguments, image.Get("index"));
    mount.path = arguments.string(image.Get("imagePath"), "imagePath", kMaxImagePath);
    mount.name = arguments.string(image.Get("name"), "name", kMaxName);
    images.push_back(std::move(mount));
  }
  return images;
}

const char* state_name(ContainerDiskState state) {
  switch (state) {
    case ContainerDiskState::kReady:
      return "ready";
    case ContainerDiskState::kNotListening:
      return "not-listening";
    case ContainerDiskState::kAbsent:
      break;
  }
  return "absent";
}

// containerDiskStates(call, podsDir, podUid, (index | null)[])
Napi::Value container_disk_states_call(Addon& addon, const Napi::CallbackInfo& info) {
  Arguments arguments(info);
  Fd pods = arguments.fd(info[1], "podsDir");
  auto pod = arguments.pod_uid(info[2]);
  auto indexes = indexes_of(arguments, info[3]);
  return addon.privileged(
      arguments,
      [pods = std::move(pods), pod, indexes = std::move(indexes)](Home&, const Deadline& deadline) {
        return container_disk_states(pods.get(), *pod, indexes, deadline);
      },
      [](Napi::Env env, std::vector<ContainerDiskState>& states) -> Napi::Value {
        Napi::Array names = Napi::Array::New(env, states.size());
        for (uint32_t i = 0; i < states.size(); ++i) names.Set(i, state_name(states[i]));
        return names;
      });
}

// mountContainerDisks(call, podsDir, podUid, launcher, images)
Napi::Value mount_container_disks_call(Addon& addon, const Napi::CallbackInfo& info) {
  Arguments arguments(info);
  Fd pods = arguments.fd(info[1], "podsDir");
  auto pod = arguments.pod_uid(info[2]);
  Launcher launcher = arguments.launcher(info[3]);
  auto images = images_of(arguments, info[4]);
  return addon.privileged(
      arguments,
      [pods = std::move(pods), pod, launcher = std::move(launcher), images = std::move(images)](
          Home& home, const Deadline& deadline) {
        return mount_container_disks(home, pods.get(), *pod, launcher, images, deadline);
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
  return addon.privileged(
      arguments,
      [pods = std::move(pods), pod, gone, launcher = std::move(launcher)](Home& home, const Deadline&) {
        return unmount_container_disks(home, pods.get(), *pod, gone ? nullptr : &launcher);
      },
      boolean);
}

}  // namespace

void define_disks(Addon& addon, Napi::Object exports) {
  addon.define(exports, "containerDiskStates", container_disk_states_call);
  addon.define(exports, "mountContainerDisks", mount_container_disks_call);
  addon.define(exports, "openContainerDisk", open_container_disk_call);
  addon.define(exports, "unmountContainerDisks", unmount_container_disks_call);
}

}  // namespace privsep
