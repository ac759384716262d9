#include <sys/inotify.h>

#include "inotify.h"
#include "napi_addon.h"

namespace privsep {

namespace {

std::shared_ptr<Napi::FunctionReference> persistent(Napi::Function function) {
  return std::make_shared<Napi::FunctionReference>(Napi::Persistent(function));
}

void deliver_events(Addon& addon, Napi::Env env, uint64_t id, const std::vector<InotifyEvent>& events) {
  Addon::Subscription* subscription = addon.find(id);
  if (subscription == nullptr) return;
  auto callback = subscription->callback;
  Napi::Array list = Napi::Array::New(env, events.size());
  for (uint32_t i = 0; i < events.size(); ++i) {
    Napi::Object event = Napi::Object::New(env);
    event.Set("wd", events[i].wd);
    event.Set("mask", events[i].mask);
    event.Set("name", events[i].name);
    list.Set(i, event);
  }
  call_back(env, *callback, {list});
  if ((subscription = addon.find(id)) != nullptr) subscription->resume();
}

// createInotify(onEvents)
Napi::Value create_inotify_call(Addon& addon, const Napi::CallbackInfo& info) {
  Arguments arguments(info);
  Napi::Function callback = arguments.function(info[0], "onEvents");
  if (arguments.error()) return throw_error(info.Env(), *arguments.error());
  auto loop = addon.loop();
  if (!loop) return throw_error(info.Env(), loop.error());
  uint64_t id = addon.reserve_id();
  auto inotify = Inotify::start(**loop, [&addon, id](std::vector<InotifyEvent> events) {
    addon.queue().post([&addon, id, events = std::move(events)](Napi::Env env) {
      deliver_events(addon, env, id, events);
    });
  });
  if (!inotify) return throw_error(info.Env(), inotify.error());
  auto shared = *inotify;
  addon.subscribe(id, {persistent(callback), [shared] { shared->stop(); }, [shared] { shared->resume(); }});
  Napi::Object object = Napi::Object::New(info.Env());
  object.Set("fd", shared->fd());
  object.Set("close", addon.stopper(id, "close"));
  return object;
}

// removeWatch(inotify, wd)
Napi::Value remove_watch_call(Addon&, const Napi::CallbackInfo& info) {
  Arguments arguments(info);
  int inotify = arguments.raw_fd(info[0], "inotify");
  auto wd = static_cast<int>(arguments.integer(info[1], "wd", 0, INT32_MAX));
  if (arguments.error()) return throw_error(info.Env(), *arguments.error());
  // EINVAL: the watch ended by itself with its directory.
  if (::inotify_rm_watch(inotify, wd) != 0 && errno != EINVAL) {
    return throw_error(info.Env(), Error::last("inotify_rm_watch"));
  }
  return info.Env().Undefined();
}

// onProcessExit(pidfd, callback)
Napi::Value on_process_exit_call(Addon& addon, const Napi::CallbackInfo& info) {
  Arguments arguments(info);
  int pidfd = arguments.raw_fd(info[0], "pidfd");
  Napi::Function callback = arguments.function(info[1], "callback");
  if (arguments.error()) return throw_error(info.Env(), *arguments.error());
  auto loop = addon.loop();
  if (!loop) return throw_error(info.Env(), loop.error());
  uint64_t id = addon.reserve_id();
  auto watch = ExitWatch::start(**loop, pidfd, [&addon, id] {
    addon.queue().post([&addon, id](Napi::Env env) {
      Addon::Subscription* subscription = addon.find(id);
      if (subscription == nullptr) return;
      auto callback = subscription->callback;
      addon.stop(id);
      call_back(env, *callback, {});
    });
  });
  if (!watch) return throw_error(info.Env(), watch.error());
  auto shared = *watch;
  addon.subscribe(id, {persistent(callback), [shared] { shared->stop(); }, [] {}});
  Napi::Object object = Napi::Object::New(info.Env());
  object.Set("cancel", addon.stopper(id, "cancel"));
  return object;
}

}  // namespace

void define_watches(Addon& addon, Napi::Object exports) {
  addon.define(exports, "createInotify", create_inotify_call);
  addon.define(exports, "removeWatch", remove_watch_call);
  addon.define(exports, "onProcessExit", on_process_exit_call);
}

}  // namespace privsep
