// What one loaded instance of the addon holds, and how its functions are written.
#pragma once

#include <napi.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include "event_loop.h"
#include "napi_queue.h"
#include "napi_values.h"
#include "privileged_pool.h"

namespace privsep {

class Addon {
 public:
  using Method = Napi::Value (*)(Addon&, const Napi::CallbackInfo&);

  explicit Addon(Napi::Env env) : env_(env) {}
  Addon(const Addon&) = delete;
  Addon& operator=(const Addon&) = delete;

  // Ends all threads. Called when the environment ends, before anything of it is gone.
  void shut_down();

  void define(Napi::Object exports, const char* name, Method method);

  JsQueue& queue() { return queue_; }
  // Started when first used.
  Result<EventLoop*> loop();

  std::unique_ptr<PrivilegedPool> pool;
  bool user_dropped = false;
  bool locked_down = false;
  // Where SELinux is active: a directory with the device of processes that have a launcher's label.
  Fd labelled_taps;

  // Something that calls JavaScript back until it is stopped. Keeps the process alive meanwhile.
  struct Subscription {
    std::shared_ptr<Napi::FunctionReference> callback;
    std::function<void()> stop;
    std::function<void()> resume;  // after a batch was handled
  };
  uint64_t reserve_id() { return next_id_++; }
  void subscribe(uint64_t id, Subscription subscription);
  void stop(uint64_t id);
  // Nothing when it was stopped.
  Subscription* find(uint64_t id);
  // A function without arguments that stops the subscription.
  Napi::Function stopper(uint64_t id, const char* name);

  // Runs `operation`, Result<T>(Home&, const Deadline&), on a privileged thread, of the pool unless it is to be `alone`
  // on one, with the capabilities and the deadline of the first argument, and not before the launcher that it may
  // name has passed check_process. The promise gets what `convert`, napi_value(Napi::Env, T&), makes of it.
  template <typename Operation, typename Convert>
  Napi::Value privileged(Arguments& arguments, Operation operation, Convert convert,
                         std::optional<PrivilegedPool::Lone> alone = std::nullopt);

 private:
  Napi::Value rejected(const Error& error);

  Napi::Env env_;
  JsQueue queue_;
  std::unique_ptr<EventLoop> loop_;
  std::unordered_map<uint64_t, Subscription> subscriptions_;
  uint64_t next_id_ = 1;
};

void define_privileges(Addon& addon, Napi::Object exports);
void define_pods(Addon& addon, Napi::Object exports);
void define_pod_files(Addon& addon, Napi::Object exports);
void define_disks(Addon& addon, Napi::Object exports);
void define_hotplug(Addon& addon, Napi::Object exports);
void define_devices(Addon& addon, Napi::Object exports);
void define_ownership(Addon& addon, Napi::Object exports);
void define_channels(Addon& addon, Napi::Object exports);
void define_watches(Addon& addon, Napi::Object exports);
void define_network(Addon& addon, Napi::Object exports);
void define_resources(Addon& addon, Napi::Object exports);

template <typename Operation, typename Convert>
Napi::Value Addon::privileged(Arguments& arguments, Operation operation, Convert convert,
                              std::optional<PrivilegedPool::Lone> alone) {
  Napi::Object call = arguments.object(arguments.at(0), "call");
  uint64_t caps = arguments.bits(call.Get("caps"), "caps");
  int64_t deadline_ms = arguments.integer(call.Get("deadlineMs"), "deadlineMs", 1, 600000);
  LauncherCheck check = arguments.launcher_check(call.Get("launcher"));
  if (arguments.error()) return rejected(*arguments.error());
  if (!pool) return rejected(Error::of(ENOTSUP, "privileged call without privileged threads"));

  auto deferred = Napi::Promise::Deferred::New(env_);
  // std::function wants something that can be copied; descriptors cannot.
  auto shared = std::make_shared<Operation>(std::move(operation));
  auto checked = std::make_shared<LauncherCheck>(std::move(check));
  PrivilegedPool::Job job{caps, Deadline::after_ms(deadline_ms), nullptr, nullptr};
  job.run = [this, deferred, shared, checked, convert](Home& home,
                                                       const Deadline& deadline) -> PrivilegedPool::Completion {
    using Outcome = decltype((*shared)(home, deadline));
    Status valid = checked->pod ? check_process(checked->pidfd.get(), *checked->pod, "launcher") : ok();
    auto outcome = std::make_shared<Outcome>(valid ? (*shared)(home, deadline) : Outcome(valid.error()));
    return [this, deferred, outcome, convert] {
      queue_.post([this, deferred, outcome, convert](Napi::Env env) {
        queue_.release(env);
        if (*outcome) {
          deferred.Resolve(convert(env, **outcome));
        } else {
          deferred.Reject(native_error(env, outcome->error()));
        }
      });
    };
  };
  job.fail = [this, deferred](const Error& error) {
    queue_.post([this, deferred, error](Napi::Env env) {
      queue_.release(env);
      deferred.Reject(native_error(env, error));
    });
  };
  auto submitted = alone ? pool->submit_alone(*alone, std::move(job)) : pool->submit(std::move(job));
  if (!submitted) return rejected(submitted.error());
  queue_.retain(env_);
  return deferred.Promise();
}

}  // namespace privsep
