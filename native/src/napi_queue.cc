#include "napi_queue.h"

#include <memory>

namespace privsep {

namespace {

void report_pending(Napi::Env env) {
  if (env.IsExceptionPending()) ::napi_fatal_exception(env, env.GetAndClearPendingException().Value());
}

}  // namespace

bool JsQueue::open(Napi::Env env) {
  Napi::String name = Napi::String::New(env, "privsep");
  if (::napi_create_threadsafe_function(env, nullptr, nullptr, name, 0, 1, nullptr, nullptr, nullptr, run, &function_) !=
      napi_ok) {
    return false;
  }
  return ::napi_unref_threadsafe_function(env, function_) == napi_ok;
}

void JsQueue::close() {
  if (function_ != nullptr) ::napi_release_threadsafe_function(function_, napi_tsfn_abort);
  function_ = nullptr;
}

void JsQueue::post(Task task) {
  auto* data = new Task(std::move(task));
  if (::napi_call_threadsafe_function(function_, data, napi_tsfn_nonblocking) != napi_ok) delete data;
}

void JsQueue::retain(Napi::Env env) {
  if (retained_++ == 0) ::napi_ref_threadsafe_function(env, function_);
}

void JsQueue::release(Napi::Env env) {
  if (--retained_ == 0) ::napi_unref_threadsafe_function(env, function_);
}

void JsQueue::run(napi_env env, napi_value, void*, void* data) {
  std::unique_ptr<Task> task(static_cast<Task*>(data));
  if (env == nullptr) return;  // the environment is being torn down
  (*task)(Napi::Env(env));
  report_pending(Napi::Env(env));
}

void call_back(Napi::Env env, const Napi::FunctionReference& callback, const std::vector<napi_value>& arguments) {
  callback.Call(env.Undefined(), arguments);
  report_pending(env);
}

}  // namespace privsep
