#include "relay_server.h"

#include <fcntl.h>
#include <linux/vm_sockets.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>

namespace privsep {

namespace {

constexpr int kAcceptBatch = 64;
constexpr size_t kMaxKnownPeers = 1024;
// Pause when nobody was let in, so that a flood costs little; what comes meanwhile stays in the backlog.
constexpr int64_t kFloodMs = 20;
// Pause when the process is out of descriptors or memory.
constexpr int64_t kShortageMs = 100;

bool is_final(int code) { return code == EINVAL || code == EBADF || code == ENOTSOCK; }

uint32_t peer_of(const sockaddr_storage& address) {
  if (address.ss_family != AF_VSOCK) return 0;
  return reinterpret_cast<const sockaddr_vm&>(address).svm_cid;
}

}  // namespace

void PeerLimits::fill(Peer& peer, int64_t now_ms) const {
  double earned = static_cast<double>(now_ms - peer.filled_at_ms) * static_cast<double>(bounds_.per_minute) / 60000;
  peer.tokens = std::min(static_cast<double>(bounds_.burst), peer.tokens + earned);
  peer.filled_at_ms = now_ms;
}

void PeerLimits::forget_idle(int64_t now_ms) {
  for (auto it = peers_.begin(); it != peers_.end();) {
    fill(it->second, now_ms);
    bool idle = it->second.open == 0 && it->second.tokens >= static_cast<double>(bounds_.burst);
    it = idle ? peers_.erase(it) : std::next(it);
  }
}

bool PeerLimits::admit(uint32_t id, int64_t now_ms) {
  auto found = peers_.find(id);
  if (found == peers_.end()) {
    if (peers_.size() >= kMaxKnownPeers) forget_idle(now_ms);
    if (peers_.size() >= kMaxKnownPeers) return false;
    found = peers_.emplace(id, Peer{0, static_cast<double>(bounds_.burst), now_ms}).first;
  }
  Peer& peer = found->second;
  fill(peer, now_ms);
  if (open_ >= bounds_.connections || peer.open >= bounds_.per_peer || peer.tokens < 1) return false;
  peer.tokens -= 1;
  ++peer.open;
  ++open_;
  return true;
}

void PeerLimits::ended(uint32_t id) {
  auto found = peers_.find(id);
  if (found == peers_.end() || found->second.open == 0) return;
  --found->second.open;
  --open_;
}

Result<std::shared_ptr<RelayServer>> RelayServer::start(EventLoop& loop, Fd listener, Limits limits, Deliver deliver) {
  int flags = ::fcntl(listener.get(), F_GETFL);
  if (flags < 0 || ::fcntl(listener.get(), F_SETFL, flags | O_NONBLOCK) != 0) return Error::last("fcntl listener");
  std::shared_ptr<RelayServer> server(new RelayServer(loop, std::move(listener), limits, std::move(deliver)));
  auto source = loop.add(server->listener_.get(), [weak = std::weak_ptr<RelayServer>(server)](uint32_t) {
    if (auto alive = weak.lock()) alive->on_event();
  });
  if (!source) return source.error();
  server->source_ = *source;
  auto armed = loop.arm(*source, EPOLLIN);
  if (!armed) return armed.error();
  return server;
}

void RelayServer::resume() { (void)loop_.arm(source_, EPOLLIN); }

void RelayServer::stop() {
  loop_.remove(source_);
  std::unordered_map<uint64_t, std::shared_ptr<Relay>> relays;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopped_ = true;
    relays.swap(relays_);
  }
  // Without the lock: a relay that ends at this moment wants it.
  for (auto& [id, relay] : relays) relay->stop();
  listener_.reset();
}

Fd RelayServer::relay(Fd connection, uint32_t peer) {
  int pair[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) != 0) return Fd();
  Fd inner(pair[0]);
  Fd end(pair[1]);
  auto relay = Relay::create(loop_, std::move(connection), std::move(inner), limits_.max_received);
  if (!relay) return Fd();
  uint64_t id = next_id_++;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (stopped_) return Fd();
    relays_.emplace(id, *relay);
  }
  (*relay)->begin([weak = weak_from_this(), id, peer] {
    if (auto alive = weak.lock()) alive->ended(id, peer);
  });
  return end;
}

void RelayServer::ended(uint64_t id, uint32_t peer) {
  peers_.ended(peer);
  std::lock_guard<std::mutex> lock(mutex_);
  relays_.erase(id);
}

void RelayServer::on_event() {
  std::vector<Arrival> arrivals;
  int64_t pause_ms = 0;
  for (int i = 0; i < kAcceptBatch; ++i) {
    sockaddr_storage address{};
    socklen_t size = sizeof address;
    Fd connection(
        ::accept4(listener_.get(), reinterpret_cast<sockaddr*>(&address), &size, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!connection.valid()) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (is_final(errno)) return deliver_(Error::last("accept"));
      if (errno != EAGAIN) pause_ms = kShortageMs;
      break;
    }
    uint32_t peer = peer_of(address);
    if (!peers_.admit(peer, Deadline::now_ms())) {
      pause_ms = kFloodMs;
      continue;
    }
    Fd end = relay(std::move(connection), peer);
    if (end.valid()) {
      arrivals.push_back({std::move(end), peer});
    } else {
      peers_.ended(peer);
      pause_ms = kShortageMs;
    }
  }
  if (!arrivals.empty()) {
    deliver_(std::move(arrivals));
  } else if (pause_ms != 0) {
    (void)loop_.arm(source_, 0, Deadline::after_ms(pause_ms));
  } else {
    resume();
  }
}

}  // namespace privsep
