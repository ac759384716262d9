// One thread that waits on descriptors for everything unprivileged. Node's own loop is not used, so the addon
// depends on Node-API alone.
#pragma once

#include <pthread.h>

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>

#include "deadline.h"
#include "fd.h"
#include "result.h"

namespace privsep {

class EventLoop {
 public:
  using SourceId = uint64_t;
  // Runs on the loop's thread with the events of epoll(7), or 0 when the deadline has passed. Afterwards the
  // source is silent until it is armed again.
  using Handler = std::function<void(uint32_t events)>;

  static constexpr size_t kMaxSources = 16384;

  static Result<std::unique_ptr<EventLoop>> start();
  ~EventLoop();
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  // Adds a descriptor, which stays the caller's and must outlive the source. Silent until armed.
  Result<SourceId> add(int fd, Handler handler);
  // Waits for `events` (0: only for the deadline), once. From any thread. Nothing happens to a removed source.
  Status arm(SourceId id, uint32_t events, std::optional<Deadline> deadline = std::nullopt);
  // Afterwards the handler does not run and will not run again, except for the call that this one is made from.
  void remove(SourceId id);

 private:
  struct Source {
    int fd = -1;
    Handler handler;
    bool registered = false;
    std::optional<Deadline> deadline;
  };

  EventLoop() = default;
  static void* thread_main(void* self);
  void run();
  void dispatch(SourceId id, uint32_t events);
  void dispatch_expired();
  void unregister(Source& source) const;
  int wait_ms();
  void wake() const;

  Fd epoll_;
  Fd wake_;
  pthread_t thread_{};
  bool started_ = false;
  std::mutex mutex_;
  std::condition_variable idle_;
  std::unordered_map<SourceId, std::shared_ptr<Source>> sources_;
  SourceId next_id_ = 1;  // 0 is the wake-up descriptor
  SourceId running_ = 0;
  bool stopping_ = false;
};

}  // namespace privsep
