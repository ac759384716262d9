#include "napi_values.h"

#include <fcntl.h>
#include <string.h>

#include <cmath>

namespace privsep {

Napi::Value native_error(Napi::Env env, const Error& error) {
  const char* name = ::strerrorname_np(error.code);
  const char* text = ::strerrordesc_np(error.code);
  std::string code = name != nullptr ? name : "E" + std::to_string(error.code);
  std::string message = error.operation + ": " + (text != nullptr ? text : "unknown error") + " (" + code + ")";
  Napi::Object object = Napi::Error::New(env, message).Value();
  object.Set("code", code);
  object.Set("errno", error.code);
  object.Set("operation", error.operation);
  object.Set("refused", error.refused);
  object.Set("unchanged", error.unchanged);
  if (error.item >= 0) object.Set("item", error.item);
  return object;
}

Napi::Value throw_error(Napi::Env env, const Error& error) {
  if (!env.IsExceptionPending()) ::napi_throw(env, native_error(env, error));
  return Napi::Value();
}

Napi::Array program_list(Napi::Env env, const std::vector<AttachedProgram>& programs) {
  Napi::Array list = Napi::Array::New(env, programs.size());
  for (uint32_t i = 0; i < programs.size(); ++i) {
    const std::string& bytes = programs[i].instructions;
    Napi::Object program = Napi::Object::New(env);
    program.Set("id", programs[i].id);
    program.Set("instructions", Napi::Buffer<char>::Copy(env, bytes.data(), bytes.size()));
    list.Set(i, program);
  }
  return list;
}

Napi::Object peer_object(Napi::Env env, pid_t pid, uid_t uid, gid_t gid) {
  Napi::Object peer = Napi::Object::New(env);
  peer.Set("pid", pid);
  peer.Set("uid", uid);
  peer.Set("gid", gid);
  return peer;
}

int64_t Arguments::integer(Napi::Value value, const char* name, int64_t low, int64_t high) {
  if (value.IsNumber()) {
    double number = value.As<Napi::Number>().DoubleValue();
    if (number >= static_cast<double>(low) && number <= static_cast<double>(high) && std::floor(number) == number) {
      return static_cast<int64_t>(number);
    }
  }
  mismatch(name);
  return low;
}

uint64_t Arguments::bits(Napi::Value value, const char* name) {
  if (value.IsBigInt()) {
    bool lossless = false;
    uint64_t bits = value.As<Napi::BigInt>().Uint64Value(&lossless);
    if (lossless) return bits;
  }
  mismatch(name);
  return 0;
}

bool Arguments::boolean(Napi::Value value, const char* name) {
  if (value.IsBoolean()) return value.As<Napi::Boolean>().Value();
  mismatch(name);
  return false;
}

std::string Arguments::string(Napi::Value value, const char* name, size_t max) {
  if (value.IsString()) {
    size_t length = 0;
    if (::napi_get_value_string_utf8(env(), value, nullptr, 0, &length) == napi_ok && length <= max) {
      std::string text = value.As<Napi::String>().Utf8Value();
      if (text.find('\0') == std::string::npos) return text;
    }
  }
  mismatch(name);
  return {};
}

std::string Arguments::bytes(Napi::Value value, const char* name, size_t max) {
  if (value.IsTypedArray() && value.As<Napi::TypedArray>().TypedArrayType() == napi_uint8_array) {
    auto array = value.As<Napi::Uint8Array>();
    if (array.ByteLength() <= max) {
      return std::string(reinterpret_cast<const char*>(array.Data()), array.ByteLength());
    }
  }
  mismatch(name);
  return {};
}

std::vector<std::string> Arguments::strings(Napi::Value value, const char* name, size_t max_count,
                                            size_t max_length) {
  Napi::Array list = array(value, name, max_count);
  std::vector<std::string> texts;
  for (uint32_t i = 0; !error_ && i < list.Length(); ++i) texts.push_back(string(list.Get(i), name, max_length));
  return texts;
}

Napi::Object Arguments::object(Napi::Value value, const char* name) {
  if (value.IsObject()) return value.As<Napi::Object>();
  mismatch(name);
  return Napi::Object::New(env());
}

Napi::Array Arguments::array(Napi::Value value, const char* name, size_t max) {
  if (value.IsArray() && value.As<Napi::Array>().Length() <= max) return value.As<Napi::Array>();
  mismatch(name);
  return Napi::Array::New(env());
}

Napi::Function Arguments::function(Napi::Value value, const char* name) {
  if (value.IsFunction()) return value.As<Napi::Function>();
  mismatch(name);
  return Napi::Function();
}

int Arguments::raw_fd(Napi::Value value, const char* name) {
  return static_cast<int>(integer(value, name, 0, INT32_MAX));
}

Fd Arguments::fd(Napi::Value value, const char* name) {
  int number = raw_fd(value, name);
  if (error_) return Fd();
  Fd own(::fcntl(number, F_DUPFD_CLOEXEC, 0));
  if (!own.valid()) fail(Error::last(std::string("dup ") + name));
  return own;
}

uint32_t Arguments::id(Napi::Value value, const char* name) {
  return static_cast<uint32_t>(integer(value, name, 0, UINT32_MAX - 1));
}

std::optional<PodUid> Arguments::pod_uid(Napi::Value value) {
  std::string text = string(value, "podUid", 64);
  if (error_) return std::nullopt;
  auto uid = PodUid::parse(text);
  if (uid) return *uid;
  fail(uid.error());
  return std::nullopt;
}

PodVolume Arguments::volume(Napi::Value value) {
  auto volume = parse_volume(string(value, "volume", 64));
  if (volume) return *volume;
  fail(volume.error());
  return PodVolume::kSockets;
}

VolumeEntry Arguments::entry(Napi::Value value) {
  Napi::Object place = object(value, "entry");
  auto entry = VolumeEntry::parse(volume(place.Get("volume")), strings(place.Get("path"), "entry.path", 16, 255));
  if (entry) return *entry;
  fail(entry.error());
  return VolumeEntry{PodVolume::kSockets, {}, {}, {}};
}

Launcher Arguments::launcher(Napi::Value value) {
  Napi::Object handles = object(value, "launcher");
  Launcher launcher;
  launcher.pidfd = fd(handles.Get("pidfd"), "launcher.pidfd");
  launcher.mntns = fd(handles.Get("mntns"), "launcher.mntns");
  launcher.netns = fd(handles.Get("netns"), "launcher.netns");
  return launcher;
}

LauncherCheck Arguments::launcher_check(Napi::Value value) {
  if (error_ || value.IsUndefined()) return {};
  Napi::Object named = object(value, "call.launcher");
  LauncherCheck check;
  check.pidfd = fd(named.Get("pidfd"), "call.launcher.pidfd");
  check.pod = pod_uid(named.Get("podUid"));
  return check;
}

DeviceHierarchy Arguments::hierarchy(Napi::Value value) {
  Napi::Object handle = object(value, "hierarchy");
  DeviceHierarchy hierarchy;
  hierarchy.root = fd(handle.Get("root"), "hierarchy.root");
  bool v1 = integer(handle.Get("version"), "hierarchy.version", 1, 2) == 1;
  hierarchy.version = v1 ? CgroupVersion::kV1 : CgroupVersion::kV2;
  return hierarchy;
}

InodeId Arguments::inode(Napi::Value value, const char* name) {
  Napi::Object id = object(value, name);
  InodeId inode;
  inode.dev = bits(id.Get("dev"), name);
  inode.ino = bits(id.Get("ino"), name);
  return inode;
}

Process Arguments::process(Napi::Value value, const char* name) {
  Napi::Object object = this->object(value, name);
  Process process;
  process.pid = static_cast<pid_t>(integer(object.Get("pid"), name, 1, INT32_MAX));
  process.ppid = static_cast<pid_t>(integer(object.Get("ppid"), name, 0, INT32_MAX));
  process.start_ticks = bits(object.Get("startTicks"), name);
  process.kernel_thread = boolean(object.Get("kernelThread"), name);
  process.comm = string(object.Get("comm"), name, kMaxComm);
  return process;
}

Thread Arguments::thread(Napi::Value value, const char* name) {
  Napi::Object object = this->object(value, name);
  Thread thread;
  thread.tid = static_cast<pid_t>(integer(object.Get("tid"), name, 1, INT32_MAX));
  thread.comm = string(object.Get("comm"), name, kMaxComm + 1);
  return thread;
}

}  // namespace privsep
