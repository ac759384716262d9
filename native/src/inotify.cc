#include "inotify.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/inotify.h>

#include <cstring>

namespace privsep {

namespace {
// 256 events without names; at least one with the longest.
constexpr size_t kBuffer = 256 * sizeof(inotify_event);
static_assert(kBuffer >= sizeof(inotify_event) + 256, "room for the longest name");
}  // namespace

std::vector<InotifyEvent> parse_inotify(std::string_view buffer) {
  std::vector<InotifyEvent> events;
  while (buffer.size() >= sizeof(inotify_event)) {
    inotify_event header{};
    std::memcpy(&header, buffer.data(), sizeof header);
    buffer.remove_prefix(sizeof header);
    if (header.len > buffer.size()) break;
    std::string_view name = buffer.substr(0, header.len);
    events.push_back({header.wd, header.mask, std::string(name.substr(0, name.find('\0')))});
    buffer.remove_prefix(header.len);
  }
  return events;
}

Result<std::shared_ptr<Inotify>> Inotify::start(EventLoop& loop, Deliver deliver) {
  Fd fd(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
  if (!fd.valid()) return Error::last("inotify_init1");
  std::shared_ptr<Inotify> inotify(new Inotify(loop, std::move(fd), std::move(deliver)));
  Inotify* self = inotify.get();  // stop() ends the source before the object goes
  auto source = loop.add(inotify->fd(), [self](uint32_t) { self->on_event(); });
  if (!source) return source.error();
  inotify->source_ = *source;
  auto armed = loop.arm(*source, EPOLLIN);
  if (!armed) return armed.error();
  return inotify;
}

void Inotify::resume() { (void)loop_.arm(source_, EPOLLIN); }

void Inotify::stop() {
  loop_.remove(source_);
  fd_.reset();
}

void Inotify::on_event() {
  char buffer[kBuffer];
  ssize_t n = ::read(fd_.get(), buffer, sizeof buffer);
  if (n <= 0) return resume();
  deliver_(parse_inotify(std::string_view(buffer, static_cast<size_t>(n))));
}

Result<std::shared_ptr<ExitWatch>> ExitWatch::start(EventLoop& loop, int pidfd, std::function<void()> on_exit) {
  Fd own(::fcntl(pidfd, F_DUPFD_CLOEXEC, 0));
  if (!own.valid()) return Error::last("dup pidfd");
  std::shared_ptr<ExitWatch> watch(new ExitWatch(loop, std::move(own)));
  auto source = loop.add(watch->pidfd_.get(), [on_exit = std::move(on_exit)](uint32_t) { on_exit(); });
  if (!source) return source.error();
  watch->source_ = *source;
  auto armed = loop.arm(*source, EPOLLIN);
  if (!armed) return armed.error();
  return watch;
}

void ExitWatch::stop() {
  loop_.remove(source_);
  pidfd_.reset();
}

}  // namespace privsep
