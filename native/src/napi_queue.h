// Handing work from native threads to the JavaScript thread.
#pragma once

#include <napi.h>

#include <functional>

#include "result.h"

namespace privsep {

class JsQueue {
 public:
  using Task = std::function<void(Napi::Env)>;

  JsQueue() = default;
  JsQueue(const JsQueue&) = delete;
  JsQueue& operator=(const JsQueue&) = delete;

  bool open(Napi::Env env);
  // Only after every thread that posts has ended.
  void close();

  // From any thread. Bounded by the callers: each has at most one task, or one batch, under way.
  void post(Task task);

  // JavaScript thread: while something is retained the process does not end by itself.
  void retain(Napi::Env env);
  void release(Napi::Env env);

 private:
  static void run(napi_env env, napi_value, void*, void* data);

  napi_threadsafe_function function_ = nullptr;
  size_t retained_ = 0;
};

// Calls a callback. What it throws becomes an uncaught exception of the process, as for any event handler.
void call_back(Napi::Env env, const Napi::FunctionReference& callback, const std::vector<napi_value>& arguments);

}  // namespace privsep
