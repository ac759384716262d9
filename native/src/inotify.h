// inotify instances and process exits, reported by the event loop.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "event_loop.h"

namespace privsep {

struct InotifyEvent {
  int32_t wd = -1;
  uint32_t mask = 0;
  std::string name;
};

// Events of one read(2). An overflow has wd -1. A truncated event ends the list.
std::vector<InotifyEvent> parse_inotify(std::string_view buffer);

// Reports in batches of at most 256; each waits for resume() before the next.
class Inotify {
 public:
  using Deliver = std::function<void(std::vector<InotifyEvent>)>;

  static Result<std::shared_ptr<Inotify>> start(EventLoop& loop, Deliver deliver);
  ~Inotify() { stop(); }
  Inotify(const Inotify&) = delete;
  Inotify& operator=(const Inotify&) = delete;

  int fd() const { return fd_.get(); }
  void resume();
  void stop();

 private:
  Inotify(EventLoop& loop, Fd fd, Deliver deliver)
      : loop_(loop), fd_(std::move(fd)), deliver_(std::move(deliver)) {}
  void on_event();

  EventLoop& loop_;
  Fd fd_;
  Deliver deliver_;
  EventLoop::SourceId source_ = 0;
};

// Calls back once, when the process of the pidfd has exited.
class ExitWatch {
 public:
  static Result<std::shared_ptr<ExitWatch>> start(EventLoop& loop, int pidfd, std::function<void()> on_exit);
  ~ExitWatch() { stop(); }
  ExitWatch(const ExitWatch&) = delete;
  ExitWatch& operator=(const ExitWatch&) = delete;
  void stop();

 private:
  ExitWatch(EventLoop& loop, Fd pidfd) : loop_(loop), pidfd_(std::move(pidfd)) {}

  EventLoop& loop_;
  Fd pidfd_;  // a duplicate: the caller may close its own at any time
  EventLoop::SourceId source_ = 0;
};

}  // namespace privsep
