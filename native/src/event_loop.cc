#include "event_loop.h"

#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <vector>

namespace privsep {

namespace {
constexpr int kBatch = 64;
}

Result<std::unique_ptr<EventLoop>> EventLoop::start() {
  std::unique_ptr<EventLoop> loop(new EventLoop());
  loop->epoll_.reset(::epoll_create1(EPOLL_CLOEXEC));
  if (!loop->epoll_.valid()) return Error::last("epoll_create1");
  loop->wake_.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!loop->wake_.valid()) return Error::last("eventfd");
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = 0;
  if (::epoll_ctl(loop->epoll_.get(), EPOLL_CTL_ADD, loop->wake_.get(), &event) != 0) return Error::last("epoll_ctl");
  // Signals are for the main thread.
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  int error = ::pthread_create(&loop->thread_, nullptr, thread_main, loop.get());
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (error != 0) return Error::of(error, "pthread_create");
  loop->started_ = true;
  return loop;
}

EventLoop::~EventLoop() {
  if (!started_) return;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  wake();
  ::pthread_join(thread_, nullptr);
}

Result<EventLoop::SourceId> EventLoop::add(int fd, Handler handler) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (sources_.size() >= kMaxSources) return Error::of(ENOBUFS, "too many descriptors in the event loop");
  auto source = std::make_shared<Source>();
  source->fd = fd;
  source->handler = std::move(handler);
  sources_.emplace(next_id_, std::move(source));
  return next_id_++;
}

Status EventLoop::arm(SourceId id, uint32_t events, std::optional<Deadline> deadline) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = sources_.find(id);
  if (found == sources_.end()) return ok();
  Source& source = *found->second;
  if (events != 0) {
    epoll_event event{};
    event.events = events | EPOLLONESHOT;
    event.data.u64 = id;
    int operation = source.registered ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;
    if (::epoll_ctl(epoll_.get(), operation, source.fd, &event) != 0) return Error::last("epoll_ctl");
    source.registered = true;
  }
  source.deadline = deadline;
  if (deadline && !::pthread_equal(::pthread_self(), thread_)) wake();
  return ok();
}

void EventLoop::remove(SourceId id) {
  std::unique_lock<std::mutex> lock(mutex_);
  auto found = sources_.find(id);
  if (found == sources_.end()) return;
  unregister(*found->second);
  sources_.erase(found);
  if (!::pthread_equal(::pthread_self(), thread_)) {
    idle_.wait(lock, [this, id] { return running_ != id; });
  }
}

void* EventLoop::thread_main(void* self) {
  ::pthread_setname_np(::pthread_self(), "privsep-io");
  static_cast<EventLoop*>(self)->run();
  return nullptr;
}

void EventLoop::run() {
  epoll_event events[kBatch];
  for (;;) {
    int count = ::epoll_wait(epoll_.get(), events, kBatch, wait_ms());
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (stopping_) return;
    }
    for (int i = 0; i < count; ++i) {
      if (events[i].data.u64 == 0) {
        uint64_t ignored;
        while (::read(wake_.get(), &ignored, sizeof ignored) > 0) {
        }
      } else {
        dispatch(events[i].data.u64, events[i].events);
      }
    }
    dispatch_expired();
  }
}

void EventLoop::dispatch(SourceId id, uint32_t events) {
  std::shared_ptr<Source> source;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = sources_.find(id);
    if (found == sources_.end()) return;
    source = found->second;
    source->deadline.reset();
    running_ = id;
  }
  source->handler(events);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    running_ = 0;
  }
  idle_.notify_all();
}

void EventLoop::dispatch_expired() {
  std::vector<SourceId> expired;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [id, source] : sources_) {
      if (!source->deadline || !source->deadline->passed()) continue;
      unregister(*source);
      expired.push_back(id);
    }
  }
  for (SourceId id : expired) dispatch(id, 0);
}

// Errors and hang-ups of a registered descriptor are reported whatever it is armed for.
void EventLoop::unregister(Source& source) const {
  if (source.registered) ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, source.fd, nullptr);
  source.registered = false;
}

int EventLoop::wait_ms() {
  std::lock_guard<std::mutex> lock(mutex_);
  int wait = -1;
  for (const auto& [id, source] : sources_) {
    if (!source->deadline) continue;
    int left = source->deadline->remaining_ms();
    wait = wait < 0 ? left : std::min(wait, left);
  }
  return wait;
}

void EventLoop::wake() const {
  uint64_t one = 1;
  (void)!::write(wake_.get(), &one, sizeof one);  // full means: woken already
}

}  // namespace privsep
