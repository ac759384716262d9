#include "napi_addon.h"

namespace privsep {

void Addon::shut_down() {
  pool.reset();
  for (auto& [id, subscription] : subscriptions_) subscription.stop();
  subscriptions_.clear();
  loop_.reset();
  queue_.close();
}

void Addon::define(Napi::Object exports, const char* name, Method method) {
  exports.Set(name, Napi::Function::New(
                        env_, [this, method](const Napi::CallbackInfo& info) { return method(*this, info); }, name));
}

Result<EventLoop*> Addon::loop() {
  if (!loop_) {
    auto started = EventLoop::start();
    if (!started) return started.error();
    loop_ = std::move(*started);
  }
  return loop_.get();
}

void Addon::subscribe(uint64_t id, Subscription subscription) {
  subscriptions_.emplace(id, std::move(subscription));
  queue_.retain(env_);
}

void Addon::stop(uint64_t id) {
  auto found = subscriptions_.find(id);
  if (found == subscriptions_.end()) return;
  Subscription subscription = std::move(found->second);
  subscriptions_.erase(found);
  subscription.stop();
  queue_.release(env_);
}

Addon::Subscription* Addon::find(uint64_t id) {
  auto found = subscriptions_.find(id);
  return found == subscriptions_.end() ? nullptr : &found->second;
}

Napi::Function Addon::stopper(uint64_t id, const char* name) {
  return Napi::Function::New(env_, [this, id](const Napi::CallbackInfo&) { stop(id); }, name);
}

Napi::Value Addon::rejected(const Error& error) {
  auto deferred = Napi::Promise::Deferred::New(env_);
  deferred.Reject(native_error(env_, error));
  return deferred.Promise();
}

}  // namespace privsep

static Napi::Object initialize(Napi::Env env, Napi::Object exports) {
  auto* addon = new privsep::Addon(env);
  if (!addon->queue().open(env)) {
    delete addon;
    Napi::Error::New(env, "privsep: no thread-safe function").ThrowAsJavaScriptException();
    return exports;
  }
  env.SetInstanceData<privsep::Addon>(addon);  // deleted with the environment
  // Hooks run in reverse order: the threads end before the queue that they post to.
  ::napi_add_env_cleanup_hook(env, [](void* data) { static_cast<privsep::Addon*>(data)->shut_down(); }, addon);
  privsep::define_privileges(*addon, exports);
  privsep::define_pods(*addon, exports);
  privsep::define_pod_files(*addon, exports);
  privsep::define_disks(*addon, exports);
  privsep::define_hotplug(*addon, exports);
  privsep::define_devices(*addon, exports);
  privsep::define_ownership(*addon, exports);
  privsep::define_channels(*addon, exports);
  privsep::define_watches(*addon, exports);
  privsep::define_network(*addon, exports);
  privsep::define_resources(*addon, exports);
  return exports;
}

NODE_API_MODULE(privsep, initialize)
