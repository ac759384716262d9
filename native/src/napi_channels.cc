#include <cstring>

#include "descriptor_channel.h"
#include "napi_addon.h"
#include "relay_server.h"
#include "unix_sockets.h"
#include "vsock.h"

namespace privsep {

namespace {

constexpr size_t kMaxPath = 4095;

Napi::Value stoppable(Addon& addon, Napi::Env env, uint64_t id) {
  Napi::Object object = Napi::Object::New(env);
  object.Set("stop", addon.stopper(id, "stop"));
  return object;
}

std::shared_ptr<Napi::FunctionReference> persistent(Napi::Function function) {
  return std::make_shared<Napi::FunctionReference>(Napi::Persistent(function));
}

// listenUnix({path, type, mode, gid, backlog})
Napi::Value listen_unix_call(Addon&, const Napi::CallbackInfo& info) {
  Arguments arguments(info);
  Napi::Object options = arguments.object(info[0], "options");
  std::string path = arguments.string(options.Get("path"), "path", kMaxPath);
  std::string type = arguments.string(options.Get("type"), "type", 16);
  auto mode = static_cast<mode_t>(arguments.integer(options.Get("mode"), "mode", 0, 0777));
  gid_t gid = arguments.id(options.Get("gid"), "gid");
  auto backlog = static_cast<int>(arguments.integer(options.Get("backlog"), "backlog", 1, 4096));
  if (type != "stream" && type != "seqpacket") arguments.fail(Error::refusal(EINVAL, "argument type"));
  if (arguments.error()) return throw_error(info.Env(), *arguments.error());
  auto listener = listen_unix(path, type == "stream" ? SOCK_STREAM : SOCK_SEQPACKET, mode, gid, backlog);
  if (!listener) return throw_error(info.Env(), listener.error());
  return Napi::Number::New(info.Env(), listener->release());
}

void deliver_connections(Addon& addon, Napi::Env env, uint64_t id, std::vector<Connection>& batch) {
  for (Connection& connection : batch) {
    Addon::Subscription* subscription = addon.find(id);
    if (subscription == nullptr) return;  // stopped meanwhile: the rest is closed
    auto callback = subscription->callback;
    const ucred& peer = connection.peer;
    Napi::Object object = peer_object(env, peer.pid, peer.uid, peer.gid);
    call_back(env, *callback, {Napi::Number::New(env, connection.fd.release()), object});
  }
  if (Addon::Subscription* subscription = addon.find(id); subscription != nullptr) subscription->resume();
}

// acceptConnections(fd, onConnection)
Napi::Value accept_connections_call(Addon& addon, const Napi::CallbackInfo& info) {
  Arguments arguments(info);
  Fd listener(arguments.raw_fd(info[0], "fd"));
  Napi::Function callback = arguments.function(info[1], "onConnection");
  if (arguments.error()) {
    listener.release();
    return throw_error(info.Env(), *arguments.error());
  }
  auto loop = addon.loop();
  if (!loop) return throw_error(info.Env(), loop.error());
  uint64_t id = addon.reserve_id();
  auto acceptor = Acceptor::start(**loop, std::move(listener), [&addon, id](std::vector<Connection> connections) {
    auto batch = std::make_shared<std::vector<Connection>>(std::move(connections));
    addon.queue().post([&addon, id, batch](Napi::Env env) { deliver_connections(addon, env, id, *batch); });
  });
  if (!acceptor) return throw_error(info.Env(), acceptor.error());
  auto shared = *acceptor;
  addon.subscribe(id, {persistent(callback), [shared] { shared->stop(); }, [shared] { shared->resume(); }});
  return stoppable(addon, info.Env(), id);
}

// reply(status, fd | null) of one request
Napi::Function replier(Addon& addon, Napi::Env env, uint64_t id, std::weak_ptr<DescriptorServer> server,
                       uint64_t request) {
  return Napi::Function::New(
      env,
      [&addon, id, server, request](const Napi::CallbackInfo& info) -> Napi::Value {
        Arguments arguments(info);
        auto status = static_cast<uint8_t>(arguments.integer(info[0], "status", 0, 255));
        Fd fd;
        if (!info[1].IsNull()) fd.reset(arguments.raw_fd(info[1], "fd"));
        if (arguments.error()) {
          fd.release();
          return throw_error(info.Env(), *arguments.error());
        }
        auto alive = server.lock();
        if (alive && addon.find(id) != nullptr) alive->reply(request, status, std::move(fd));
        return info.Env().Undefined();
      },
      "reply");
}

void deliver_request(Addon& addon, Napi::Env env, uint64_t id, const std::weak_ptr<DescriptorServer>& server,
                     const DescriptorServer::Request& request) {
  Addon::Subscription* subscription = addon.find(id);
  if (subscription == nullptr) return;
  auto callback = subscription->callback;
  Napi::Value message;
  if (request.refusal != 0) {
    message = Napi::String::New(env, ::strerrorname_np(request.refusal));
  } else {
    Napi::Uint8Array bytes = Napi::Uint8Array::New(env, request.bytes.size());
    std::copy(request.bytes.begin(), request.bytes.end(), bytes.Data());
    message = bytes;
  }
  call_back(env, *callback,
            {message, peer_object(env, request.peer.pid, request.peer.uid, request.peer.gid),
             replier(addon, env, id, server, request.id)});
}

// serveDescriptors(fd, {maxBytes, timeoutMs, maxConnections, uid}, onRequest)
Napi::Value serve_descriptors_call(Addon& addon, const Napi::CallbackInfo& info) {
  Arguments arguments(info);
  Fd listener(arguments.raw_fd(info[0], "fd"));
  Napi::Object options = arguments.object(info[1], "options");
  DescriptorServer::Limits limits{
      static_cast<size_t>(arguments.integer(options.Get("maxBytes"), "maxBytes", 1, kMaxRequest)),
      arguments.integer(options.Get("timeoutMs"), "timeoutMs", 1, 600000),
      static_cast<size_t>(arguments.integer(options.Get("maxConnections"), "maxConnections", 1, 1024)),
      static_cast<uid_t>(arguments.id(options.Get("uid"), "uid"))};
  Napi::Function callback = arguments.function(info[2], "onRequest");
  if (arguments.error()) {
    listener.release();
    return throw_error(info.Env(), *arguments.error());
  }
  auto loop = addon.loop();
  if (!loop) return throw_error(info.Env(), loop.error());
  uint64_t id = addon.reserve_id();
  // Known to the deliverer before the first request can come: both are posted to this thread.
  auto handle = std::make_shared<std::weak_ptr<DescriptorServer>>();
  auto server = DescriptorServer::start(**loop, std::move(listener), limits,
                                        [&addon, id, handle](DescriptorServer::Request request) {
                                          addon.queue().post([&addon, id, handle, request](Napi::Env env) {
                                            deliver_request(addon, env, id, *handle, request);
                                          });
                                        });
  if (!server) return throw_error(info.Env(), server.error());
  auto shared = *server;
  *handle = shared;
  addon.subscribe(id, {persistent(callback), [shared] { shared->stop(); }, [] {}});
  return stoppable(addon, info.Env(), id);
}

// claimDescriptor(path, ticket, timeoutMs)
Napi::Value claim_descriptor_call(Addon& addon, const Napi::CallbackInfo& info) {
  Arguments arguments(info);
  std::string path = arguments.string(info[0], "path", kMaxPath);
  std::string ticket = arguments.bytes(info[1], "ticket", kMaxRequest);
  int64_t timeout_ms = arguments.integer(info[2], "timeoutMs", 1, 600000);
  auto deferred = Napi::Promise::Deferred::New(info.Env());
  auto reject = [&](const Error& error) {
    deferred.Reject(native_error(info.Env(), error));
    return deferred.Promise();
  };
  if (arguments.error()) return reject(*arguments.error());
  auto loop = addon.loop();
  if (!loop) return reject(loop.error());
  uint64_t id = addon.reserve_id();
  auto done = [&addon, id, deferred](Result<Fd> result) {
    auto outcome = std::make_shared<Result<Fd>>(std::move(result));
    addon.queue().post([&addon, id, deferred, outcome](Napi::Env env) {
      addon.stop(id);
      if (*outcome) {
        deferred.Resolve(Napi::Number::New(env, (*outcome)->release()));
      } else {
        deferred.Reject(native_error(env, outcome->error()));
      }
    });
  };
  auto claim = DescriptorClaim::start(**loop, path, ticket, timeout_ms, done);
  if (!claim) return reject(claim.error());
  auto holder = std::make_shared<std::shared_ptr<DescriptorClaim>>(*claim);
  addon.subscribe(id, {nullptr, [holder] { holder->reset(); }, [] {}});
  return deferred.Promise();
}

void deliver_arrivals(Addon& addon, Napi::Env env, uint64_t id, Result<std::vector<RelayServer::Arrival>>& outcome) {
  if (!outcome) {
    Addon::Subscription* subscription = addon.find(id);
    if (subscription == nullptr) return;
    auto callback = subscription->callback;
    return call_back(env, *callback, {native_error(env, outcome.error())});
  }
  for (RelayServer::Arrival& arrival : *outcome) {
    Addon::Subscription* subscription = addon.find(id);
    if (subscription == nullptr) return;  // stopped meanwhile: the rest is closed
    auto callback = subscription->callback;
    Napi::Object object = Napi::Object::New(env);
    object.Set("fd", arrival.end.release());
    call_back(env, *callback, {object});
  }
  if (Addon::Subscription* subscription = addon.find(id); subscription != nullptr) subscription->resume();
}

// acceptRelayed(fd, {connections, perPeer, burst, perMinute, maxReceivedBytes}, onArrival)
Napi::Value accept_relayed_call(Addon& addon, const Napi::CallbackInfo& info) {
  Arguments arguments(info);
  Fd listener(arguments.raw_fd(info[0], "fd"));
  Napi::Object options = arguments.object(info[1], "limits");
  auto count = [&](const char* name) {
    return static_cast<size_t>(arguments.integer(options.Get(name), name, 1, 4096));
  };
  RelayServer::Limits limits{
      {count("connections"), count("perPeer"), count("burst"), count("perMinute")},
      static_cast<uint64_t>(arguments.integer(options.Get("maxReceivedBytes"), "maxReceivedBytes", 1, 1 << 30))};
  Napi::Function callback = arguments.function(info[2], "onArrival");
  if (arguments.error()) {
    listener.release();
    return throw_error(info.Env(), *arguments.error());
  }
  auto loop = addon.loop();
  if (!loop) return throw_error(info.Env(), loop.error());
  uint64_t id = addon.reserve_id();
  auto server = RelayServer::start(
      **loop, std::move(listener), limits, [&addon, id](Result<std::vector<RelayServer::Arrival>> arrivals) {
        auto shared = std::make_shared<Result<std::vector<RelayServer::Arrival>>>(std::move(arrivals));
        addon.queue().post([&addon, id, shared](Napi::Env env) { deliver_arrivals(addon, env, id, *shared); });
      });
  if (!server) return throw_error(info.Env(), server.error());
  auto shared = *server;
  addon.subscribe(id, {persistent(callback), [shared] { shared->stop(); }, [shared] { shared->resume(); }});
  return stoppable(addon, info.Env(), id);
}

// listenVsock(call)
Napi::Value listen_vsock_call(Addon& addon, const Napi::CallbackInfo& info) {
  Arguments arguments(info);
  return addon.privileged(
      arguments, [](Home&, const Deadline&) { return listen_vsock(); },
      [](Napi::Env env, Fd& listener) -> Napi::Value { return Napi::Number::New(env, listener.release()); });
}

}  // namespace

void define_channels(Addon& addon, Napi::Object exports) {
  addon.define(exports, "listenUnix", listen_unix_call);
  addon.define(exports, "acceptConnections", accept_connections_call);
  addon.define(exports, "serveDescriptors", serve_descriptors_call);
  addon.define(exports, "claimDescriptor", claim_descriptor_call);
  addon.define(exports, "acceptRelayed", accept_relayed_call);
  addon.define(exports, "listenVsock", listen_vsock_call);
}

}  // namespace privsep
