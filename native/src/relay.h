// Bytes between two sockets, for a program that cannot use one of them itself: Node knows no AF_VSOCK.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "event_loop.h"
#include "fd.h"
#include "result.h"

namespace privsep {

// Carries bytes between two connected stream sockets. Each way has one buffer, and who fills it is not read before the
// other side has taken what is in it. The end of one side's bytes is passed on when all before it are; the relay ends
// with both ways, when one side is broken, or when the outer side has sent more than it may.
class Relay : public std::enable_shared_from_this<Relay> {
 public:
  static constexpr size_t kBuffer = 16 * 1024;

  // Both are non-blocking. Nothing happens before begin().
  static Result<std::shared_ptr<Relay>> create(EventLoop& loop, Fd outer, Fd inner, uint64_t max_received);
  ~Relay() { stop(); }
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  // `ended` runs once, on the loop's thread, unless stop() comes before. The sockets are open until the relay goes.
  void begin(std::function<void()> ended);
  // Closes both sockets, whatever is under way. Not from `ended`.
  void stop();

 private:
  struct Side {
    Fd fd;
    EventLoop::SourceId source = 0;
  };
  struct Way {
    std::array<char, kBuffer> buffer;
    size_t from = 0;
    size_t to = 0;
    bool at_end = false;  // the sender has no more
    bool closed = false;  // and the receiver was told, or wants no more
    bool pending() const { return from < to; }
  };

  Relay(EventLoop& loop, uint64_t max_received) : loop_(loop), left_(max_received) {}
  void on_event(Side& side, uint32_t events);
  // False when the relay is over.
  bool carry(Side& sender, Way& way, Side& receiver);
  bool receive(Side& sender, Way& way);
  void abandon(Way& way);
  bool arm(Side& side, const Way& in, const Way& out);
  Way& from(const Side& side) { return &side == &outer_ ? inward_ : outward_; }

  EventLoop& loop_;
  Side outer_;
  Side inner_;
  Way inward_;
  Way outward_;
  uint64_t left_;
  bool over_ = false;
  std::function<void()> ended_;
};

}  // namespace privsep
