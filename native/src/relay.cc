#include "relay.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>

namespace privsep {

namespace {

// Buffers carried for one event, so that one busy connection does not keep the loop from the others.
constexpr int kRounds = 4;

bool would_block() { return errno == EAGAIN || errno == EINTR; }

}  // namespace

Result<std::shared_ptr<Relay>> Relay::create(EventLoop& loop, Fd outer, Fd inner, uint64_t max_received) {
  std::shared_ptr<Relay> relay(new Relay(loop, max_received));
  relay->outer_.fd = std::move(outer);
  relay->inner_.fd = std::move(inner);
  for (Side* side : {&relay->outer_, &relay->inner_}) {
    auto source = loop.add(side->fd.get(), [weak = std::weak_ptr<Relay>(relay), side](uint32_t events) {
      // Whoever is told of the end may let go of the relay.
      if (auto alive = weak.lock()) alive->on_event(*side, events);
    });
    if (!source) return source.error();
    side->source = *source;
  }
  return relay;
}

void Relay::begin(std::function<void()> ended) {
  ended_ = std::move(ended);
  // What cannot be waited for is found broken at the first event of the other side, at the latest at its end.
  (void)loop_.arm(outer_.source, EPOLLIN);
  (void)loop_.arm(inner_.source, EPOLLIN);
}

void Relay::stop() {
  loop_.remove(outer_.source);
  loop_.remove(inner_.source);
  outer_.fd.reset();
  inner_.fd.reset();
}

void Relay::on_event(Side& side, uint32_t events) {
  if (over_) return;
  Side& other = &side == &outer_ ? inner_ : outer_;
  Way& in = from(side);
  Way& out = from(other);
  // It takes nothing more; what it has sent can still be read.
  if ((events & (EPOLLHUP | EPOLLERR)) != 0) abandon(out);
  bool alive = carry(side, in, other) && carry(other, out, side);
  alive = alive && !(in.closed && out.closed) && arm(side, in, out) && arm(other, out, in);
  if (alive) return;
  // The sources stay until the relay goes: stop() on another thread waits for them, hence for this.
  over_ = true;
  ended_();
}

void Relay::abandon(Way& way) {
  way.from = way.to = 0;
  way.at_end = way.closed = true;
}

bool Relay::receive(Side& sender, Way& way) {
  ssize_t n = ::recv(sender.fd.get(), way.buffer.data(), way.buffer.size(), MSG_DONTWAIT);
  if (n < 0) return would_block();
  way.from = 0;
  way.to = static_cast<size_t>(n);
  way.at_end = n == 0;
  if (&sender != &outer_) return true;
  if (way.to > left_) return false;
  left_ -= way.to;
  return true;
}

bool Relay::carry(Side& sender, Way& way, Side& receiver) {
  for (int round = 0; round < kRounds && !way.closed; ++round) {
    if (!way.pending() && !way.at_end && !receive(sender, way)) return false;
    if (way.pending()) {
      ssize_t n =
          ::send(receiver.fd.get(), way.buffer.data() + way.from, way.to - way.from, MSG_DONTWAIT | MSG_NOSIGNAL);
      if (n < 0) return would_block();
      way.from += static_cast<size_t>(n);
      if (way.pending()) return true;
    } else if (way.at_end) {
      // ENOTCONN: the receiver is gone as well.
      (void)::shutdown(receiver.fd.get(), SHUT_WR);
      way.closed = true;
    } else {
      return true;
    }
  }
  return true;
}

bool Relay::arm(Side& side, const Way& in, const Way& out) {
  uint32_t events = 0;
  if (!in.pending() && !in.at_end) events |= EPOLLIN;
  if (out.pending()) events |= EPOLLOUT;
  // Silent: whatever it does is seen when the other side sends or ends.
  if (events == 0) return true;
  return static_cast<bool>(loop_.arm(side.source, events));
}

}  // namespace privsep
