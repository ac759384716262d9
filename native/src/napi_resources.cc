#include "housekeeping.h"
#include "napi_addon.h"
#include "processes.h"
#include "resources.h"

namespace privsep {

namespace {

constexpr size_t kMaxVcpus = 1024;

Napi::Value boolean(Napi::Env env, bool& value) { return Napi::Boolean::New(env, value); }

Napi::Value process_object(Napi::Env env, const Process& process) {
  Napi::Object object = Napi::Object::New(env);
  object.Set("pid", process.pid);
  object.Set("ppid", process.ppid);
  object.Set("startTicks", Napi::BigInt::New(env, process.start_ticks));
  object.Set("kernelThread", process.kernel_thread);
  object.Set("comm", process.comm);
  return object;
}

Napi::Value process_list(Napi::Env env, const std::vector<Process>& processes) {
  Napi::Array list = Napi::Array::New(env, processes.size());
  for (uint32_t i = 0; i < processes.size(); ++i) list.Set(i, process_object(env, processes[i]));
  return list;
}

// launcherProcesses(call, launcher)
Napi::Value launcher_processes_call(Addon& addon, const Napi::CallbackInfo& info) {
  Arguments arguments(info);
  Launcher launcher = arguments.launcher(info[1]);
  return addon.privileged(
      arguments,
      [launcher = std::move(launcher)](Home&, const Deadline& deadline) {
        return launcher_processes(launcher, deadline);
      },
      [](Napi::Env env, LauncherProcesses& processes) -> Napi::Value {
        Napi::Object object = Napi::Object::New(env);
        object.Set("launcher", processes.launcher);
        object.Set("monitor", processes.monitor);
        object.Set("children", process_list(env, processes.children));
        return object;
      });
}

// kernelThreads(call, comm)
Napi::Value kernel_threads_call(Addon& addon, const Napi::CallbackInfo& info) {
  Arguments arguments(info);
  std::string comm = arguments.string(info[1], "comm", kMaxComm);
  return addon.privileged(
      arguments, [comm](Home&, const Deadline& deadline) { return kernel_threads(comm, deadline); },
      [](Napi::Env env, std::vector<Process>& threads) { return process_list(env, threads); });
}

// processThreads(call, podUid, process)
Napi::Value process_threads_call(Addon& addon, const Napi::CallbackInfo& info) {
  Arguments arguments(info);
  auto pod = arguments.pod_uid(info[1]);
  Process process = arguments.process(info[2], "process");
  return addon.privileged(
      arguments, [pod, process](Home&, const Deadline&) { return process_threads(*pod, process); },
      [](Napi::Env env, std::vector<Thread>& threads) -> Napi::Value {
        Napi::Array list = Napi::Array::New(env, threads.size());
        for (uint32_t i = 0; i < threads.size(); ++i) {
          Napi::Object thread = Napi::Object::New(env);
          thread.Set("tid", threads[i].tid);
          thread.Set("comm", threads[i].comm);
          list.Set(i, thread);
        }
        return list;
      });
}

// liftMemlock(call, podUid, process)
Napi::Value lift_memlock_call(Addon& addon, const Napi::CallbackInfo& info) {
  Arguments arguments(info);
  auto pod = arguments.pod_uid(info[1]);
  Process process = arguments.process(info[2], "process");
  return addon.privileged(
      arguments, [pod, process](Home&, const Deadline&) { return lift_memlock(*pod, process); }, boolean);
}

// scheduleThreads(call, podUid, process, threads)
Napi::Value schedule_threads_call(Addon& addon, const Napi::CallbackInfo& info) {
  Arguments arguments(info);
  auto pod = arguments.pod_uid(info[1]);
  Process process = arguments.process(info[2], "process");
  Napi::Array list = arguments.array(info[3], "threads", kMaxVcpus);
  std::vector<Thread> threads;
  for (uint32_t i = 0; !arguments.error() && i < list.Length(); ++i) {
    threads.push_back(arguments.thread(list.Get(i), "threads"));
  }
  return addon.privileged(
      arguments, [pod, process, threads](Home&, const Deadline&) { return schedule_threads(*pod, process, threads); },
      boolean);
}

// affineKernelThread(call, podUid, process, like, kernelThread, realtime)
Napi::Value affine_kernel_thread_call(Addon& addon, const Napi::CallbackInfo& info) {
  Arguments arguments(info);
  auto pod = arguments.pod_uid(info[1]);
  Process process = arguments.process(info[2], "process");
  Thread like = arguments.thread(info[3], "like");
  Process kernel_thread = arguments.process(info[4], "kernelThread");
  bool realtime = arguments.boolean(info[5], "realtime");
  return addon.privileged(
      arguments,
      [pod, process, like, kernel_thread, realtime](Home&, const Deadline&) {
        return affine_kernel_thread(*pod, process, like, kernel_thread, realtime);
      },
      boolean);
}

// isolateEmulator(call, cgroupRoot, podUid, launcher, uid, cpus)
Napi::Value isolate_emulator_call(Addon& addon, const Napi::CallbackInfo& info) {
  Arguments arguments(info);
  Fd root = arguments.fd(info[1], "cgroupRoot");
  auto pod = arguments.pod_uid(info[2]);
  Launcher launcher = arguments.launcher(info[3]);
  uid_t user = arguments.id(info[4], "uid");
  Napi::Array list = arguments.array(info[5], "cpus", kMaxCpus);
  CpuList cpus;
  for (uint32_t i = 0; !arguments.error() && i < list.Length(); ++i) {
    cpus.insert(static_cast<uint32_t>(arguments.integer(list.Get(i), "cpus", 0, kMaxCpus - 1)));
  }
  return addon.privileged(
      arguments,
      [root = std::move(root), pod, launcher = std::move(launcher), user, cpus](Home&, const Deadline& deadline) {
        return isolate_emulator(root.get(), *pod, launcher, user, cpus, deadline);
      },
      [](Napi::Env env, Isolation& isolation) -> Napi::Value {
        Napi::Object object = Napi::Object::New(env);
        object.Set("changed", isolation.changed);
        object.Set("moved", isolation.moved);
        return object;
      });
}

}  // namespace

void define_resources(Addon& addon, Napi::Object exports) {
  addon.define(exports, "launcherProcesses", launcher_processes_call);
  addon.define(exports, "kernelThreads", kernel_threads_call);
  addon.define(exports, "processThreads", process_threads_call);
  addon.define(exports, "liftMemlock", lift_memlock_call);
  addon.define(exports, "scheduleThreads", schedule_threads_call);
  addon.define(exports, "affineKernelThread", affine_kernel_thread_call);
  addon.define(exports, "isolateEmulator", isolate_emulator_call);
}

}  // namespace privsep
