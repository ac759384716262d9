// Accepting connections whose bytes are relayed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "event_loop.h"
#include "fd.h"
#include "relay.h"
#include "result.h"

namespace privsep {

// Who may have how many connections. A peer is a guest's CID.
class PeerLimits {
 public:
  struct Bounds {
    size_t connections = 0;  // of all peers together
    size_t per_peer = 0;
    size_t burst = 0;       // that a peer may make at once
    size_t per_minute = 0;  // and make again
  };

  explicit PeerLimits(Bounds bounds) : bounds_(bounds) {}

  bool admit(uint32_t peer, int64_t now_ms);
  void ended(uint32_t peer);
  size_t known() const { return peers_.size(); }

 private:
  struct Peer {
    size_t open = 0;
    double tokens = 0;
    int64_t filled_at_ms = 0;
  };
  void fill(Peer& peer, int64_t now_ms) const;
  void forget_idle(int64_t now_ms);

  Bounds bounds_;
  size_t open_ = 0;
  std::unordered_map<uint32_t, Peer> peers_;
};

// Accepts connections of a listening stream socket of any family. Each is relayed to one end of a socket pair, the
// other end is handed out. Connections beyond the limits are closed at once.
class RelayServer : public std::enable_shared_from_this<RelayServer> {
 public:
  struct Limits {
    PeerLimits::Bounds peers;
    uint64_t max_received = 0;  // bytes that a connection may bring
  };
  struct Arrival {
    Fd end;
    uint32_t peer = 0;  // CID; 0 where the socket is of another family
  };
  // At most 64 arrivals, after which resume() is waited for; or why nothing more can be accepted, which is the last.
  using Deliver = std::function<void(Result<std::vector<Arrival>>)>;

  static Result<std::shared_ptr<RelayServer>> start(EventLoop& loop, Fd listener, Limits limits, Deliver deliver);
  ~RelayServer() { stop(); }
  RelayServer(const RelayServer&) = delete;
  RelayServer& operator=(const RelayServer&) = delete;

  void resume();
  // Closes the listener and every connection at once. Not from the loop's thread.
  void stop();

 private:
  RelayServer(EventLoop& loop, Fd listener, Limits limits, Deliver deliver)
      : loop_(loop), listener_(std::move(listener)), limits_(limits), peers_(limits.peers),
        deliver_(std::move(deliver)) {}
  void on_event();
  // Nothing when there is no room for another connection.
  Fd relay(Fd connection, uint32_t peer);
  void ended(uint64_t id, uint32_t peer);

  EventLoop& loop_;
  Fd listener_;
  const Limits limits_;
  PeerLimits peers_;  // of the loop's thread
  Deliver deliver_;
  EventLoop::SourceId source_ = 0;
  std::mutex mutex_;
  bool stopped_ = false;
  uint64_t next_id_ = 1;
  std::unordered_map<uint64_t, std::shared_ptr<Relay>> relays_;
};

}  // namespace privsep
