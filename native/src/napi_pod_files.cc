#include "directory.h"
#include "napi_addon.h"
#include "pod_sockets.h"
#include "volume_file.h"

namespace privsep {

namespace {

constexpr size_t kMaxComponents = 16;
constexpr size_t kMaxName = 255;

Napi::Value boolean(Napi::Env env, bool& value) { return Napi::Boolean::New(env, value); }

// listDirectory(call, dirfd, components, limit)
Napi::Value list_directory_call(Addon& addon, const Napi::CallbackInfo& info) {
  Arguments arguments(info);
  Fd directory = arguments.fd(info[1], "dirfd");
  auto components = arguments.strings(info[2], "components", kMaxComponents, kMaxName);
  auto limit = static_cast<size_t>(arguments.integer(info[3], "limit", 1, kMaxListing));
  return addon.privileged(
      arguments,
      [directory = std::move(directory), components, limit](Home&, const Deadline&) {
        return list_directory(directory.get(), components, limit);
      },
      [](Napi::Env env, std::vector<std::string>& names) -> Napi::Value {
        Napi::Array list = Napi::Array::New(env, names.size());
        for (uint32_t i = 0; i < names.size(); ++i) list.Set(i, names[i]);
        return list;
      });
}

// watchDirectory(call, inotify, dirfd, components, mask)
Napi::Value watch_directory_call(Addon& addon, const Napi::CallbackInfo& info) {
  Arguments arguments(info);
  Fd inotify = arguments.fd(info[1], "inotify");
  Fd directory = arguments.fd(info[2], "dirfd");
  auto components = arguments.strings(info[3], "components", kMaxComponents, kMaxName);
  auto mask = static_cast<uint32_t>(arguments.integer(info[4], "mask", 1, UINT32_MAX));
  return addon.privileged(
      arguments,
      [inotify = std::move(inotify), directory = std::move(directory), components, mask](Home&, const Deadline&) {
        return watch_directory(inotify.get(), directory.get(), components, mask);
      },
      [](Napi::Env env, int& wd) -> Napi::Value { return Napi::Number::New(env, wd); });
}

Napi::Value descriptor(Napi::Env env, Fd& fd) { return Napi::Number::New(env, fd.release()); }

// connectSocket(call, podsDir, podUid, entry, launcher | null)
Napi::Value connect_socket_call(Addon& addon, const Napi::CallbackInfo& info) {
  Arguments arguments(info);
  Fd pods = arguments.fd(info[1], "podsDir");
  auto pod = arguments.pod_uid(info[2]);
  VolumeEntry entry = arguments.entry(info[3]);
  bool anybody = info[4].IsNull();
  Launcher launcher = anybody ? Launcher() : arguments.launcher(info[4]);
  return addon.privileged(
      arguments,
      [pods = std::move(pods), pod, entry, anybody, launcher = std::move(launcher)](Home&, const Deadline& deadline) {
        return anybody ? connect_socket(pods.get(), *pod, entry, deadline)
                       : connect_launcher(pods.get(), *pod, entry, launcher, deadline);
      },
      descriptor);
}

// connectAttachment(call, podsDir, podUid)
Napi::Value connect_attachment_call(Addon& addon, const Napi::CallbackInfo& info) {
  Arguments arguments(info);
  Fd pods = arguments.fd(info[1], "podsDir");
  auto pod = arguments.pod_uid(info[2]);
  return addon.privileged(
      arguments,
      [pods = std::move(pods), pod](Home&, const Deadline& deadline) {
        return connect_attachment(pods.get(), *pod, deadline);
      },
      descriptor);
}

// listenSocket(call, podsDir, podUid, entry, uid, gid)
Napi::Value listen_socket_call(Addon& addon, const Napi::CallbackInfo& info) {
  Arguments arguments(info);
  Fd pods = arguments.fd(info[1], "podsDir");
  auto pod = arguments.pod_uid(info[2]);
  VolumeEntry entry = arguments.entry(info[3]);
  uid_t uid = arguments.id(info[4], "uid");
  gid_t gid = arguments.id(info[5], "gid");
  return addon.privileged(
      arguments,
      [pods = std::move(pods), pod, entry, uid, gid](Home&, const Deadline&) {
        return listen_socket(pods.get(), *pod, entry, uid, gid);
      },
      [](Napi::Env env, ListeningSocket& socket) -> Napi::Value {
        Napi::Object object = Napi::Object::New(env);
        object.Set("fd", socket.fd.release());
        object.Set("dev", Napi::BigInt::New(env, socket.inode.dev));
        object.Set("ino", Napi::BigInt::New(env, socket.inode.ino));
        return object;
      });
}

// claimSocket(call, podsDir, podUid, entry, uid, gid)
Napi::Value claim_socket_call(Addon& addon, const Napi::CallbackInfo& info) {
  Arguments arguments(info);
  Fd pods = arguments.fd(info[1], "podsDir");
  auto pod = arguments.pod_uid(info[2]);
  VolumeEntry entry = arguments.entry(info[3]);
  uid_t uid = arguments.id(info[4], "uid");
  gid_t gid = arguments.id(info[5], "gid");
  return addon.privileged(
      arguments,
      [pods = std::move(pods), pod, entry, uid, gid](Home&, const Deadline&) {
        return claim_socket(pods.get(), *pod, entry, uid, gid);
      },
      boolean);
}

// unlinkSocket(call, podsDir, podUid, entry, inode)
Napi::Value unlink_socket_call(Addon& addon, const Napi::CallbackInfo& info) {
  Arguments arguments(info);
  Fd pods = arguments.fd(info[1], "podsDir");
  auto pod = arguments.pod_uid(info[2]);
  VolumeEntry entry = arguments.entry(info[3]);
  InodeId inode = arguments.inode(info[4], "inode");
  return addon.privileged(
      arguments,
      [pods = std::move(pods), pod, entry, inode](Home&, const Deadline&) {
        return unlink_socket(pods.get(), *pod, entry, inode);
      },
      boolean);
}

// volumeFileSize(call, podsDir, podUid, entry)
Napi::Value volume_file_size_call(Addon& addon, const Napi::CallbackInfo& info) {
  Arguments arguments(info);
  Fd pods = arguments.fd(info[1], "podsDir");
  auto pod = arguments.pod_uid(info[2]);
  VolumeEntry entry = arguments.entry(info[3]);
  return addon.privileged(
      arguments,
      [pods = std::move(pods), pod, entry](Home&, const Deadline&) { return volume_file_size(pods.get(), *pod, entry); },
      [](Napi::Env env, uint64_t& size) -> Napi::Value { return Napi::BigInt::New(env, size); });
}

// markUnresponsive(call, podsDir, podUid)
Napi::Value mark_unresponsive_call(Addon& addon, const Napi::CallbackInfo& info) {
  Arguments arguments(info);
  Fd pods = arguments.fd(info[1], "podsDir");
  auto pod = arguments.pod_uid(info[2]);
  return addon.privileged(
      arguments,
      [pods = std::move(pods), pod](Home&, const Deadline& deadline) {
        return mark_unresponsive(pods.get(), *pod, deadline);
      },
      boolean);
}

// writeVolumeFile(call, podsDir, podUid, volume, name, content, owner)
Napi::Value write_volume_file_call(Addon& addon, const Napi::CallbackInfo& info) {
  Arguments arguments(info);
  Fd pods = arguments.fd(info[1], "podsDir");
  auto pod = arguments.pod_uid(info[2]);
  PodVolume volume = arguments.volume(info[3]);
  std::string name = arguments.string(info[4], "name", kMaxName);
  std::string content = arguments.bytes(info[5], "content", kMaxVolumeFile);
  Napi::Object options = arguments.object(info[6], "owner");
  FileOwner owner{arguments.id(options.Get("uid"), "owner.uid"), arguments.id(options.Get("gid"), "owner.gid"),
                  static_cast<mode_t>(arguments.integer(options.Get("mode"), "owner.mode", 0, 0777))};
  return addon.privileged(
      arguments,
      [pods = std::move(pods), pod, volume, name, content, owner](Home&, const Deadline&) {
        return write_volume_file(pods.get(), *pod, volume, name, content, owner);
      },
      [](Napi::Env env, WriteOutcome& outcome) -> Napi::Value {
        return Napi::String::New(env, outcome == WriteOutcome::kEqual     ? "equal"
                                      : outcome == WriteOutcome::kCreated ? "created"
                                                                          : "replaced");
      });
}

// removeVolumeFile(call, podsDir, podUid, volume, name)
Napi::Value remove_volume_file_call(Addon& addon, const Napi::CallbackInfo& info) {
  Arguments arguments(info);
  Fd pods = arguments.fd(info[1], "podsDir");
  auto pod = arguments.pod_uid(info[2]);
  PodVolume volume = arguments.volume(info[3]);
  std::string name = arguments.string(info[4], "name", kMaxName);
  return addon.privileged(
      arguments,
      [pods = std::move(pods), pod, volume, name](Home&, const Deadline&) {
        return remove_volume_file(pods.get(), *pod, volume, name);
      },
      boolean);
}

}  // namespace

void define_pod_files(Addon& addon, Napi::Object exports) {
  addon.define(exports, "listDirectory", list_directory_call);
  addon.define(exports, "watchDirectory", watch_directory_call);
  addon.define(exports, "connectSocket", connect_socket_call);
  addon.define(exports, "connectAttachment", connect_attachment_call);
  addon.define(exports, "listenSocket", listen_socket_call);
  addon.define(exports, "claimSocket", claim_socket_call);
  addon.define(exports, "unlinkSocket", unlink_socket_call);
  addon.define(exports, "markUnresponsive", mark_unresponsive_call);
  addon.define(exports, "writeVolumeFile", write_volume_file_call);
  addon.define(exports, "removeVolumeFile", remove_volume_file_call);
  addon.define(exports, "volumeFileSize", volume_file_size_call);
}

}  // namespace privsep
