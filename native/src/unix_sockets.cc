#include "unix_sockets.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cstring>

#include "kernel.h"

namespace privsep {

namespace {

constexpr int kAcceptBatch = 16;
// Pause when the process is out of descriptors or memory; the connection stays in the backlog.
constexpr int64_t kShortageMs = 100;
constexpr mode_t kClosed = 0600;

}  // namespace

Result<Fd> listen_unix(const std::string& path, int type, mode_t mode, gid_t gid, int backlog) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof address.sun_path) return Error::refusal(ENAMETOOLONG, "socket path");
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  struct stat old {};
  if (::lstat(path.c_str(), &old) == 0) {
    if (!S_ISSOCK(old.st_mode)) return Error::refusal(EEXIST, "entry at " + path + " is not a socket");
    if (::unlink(path.c_str()) != 0) return Error::last("unlink " + path);
  } else if (errno != ENOENT) {
    return Error::last("lstat " + path);
  }
  Fd listener(::socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener.valid()) return Error::last("socket");
  auto closed = refuse_descriptors(listener.get());
  if (!closed) return closed.error();
  // The entry inherits the mode of the socket.
  if (::fchmod(listener.get(), kClosed) != 0) return Error::last("fchmod socket");
  if (::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
    return Error::last("bind " + path);
  }
  if (::lchown(path.c_str(), static_cast<uid_t>(-1), gid) != 0) return Error::last("lchown " + path);
  if (::chmod(path.c_str(), mode) != 0) return Error::last("chmod " + path);
  if (::listen(listener.get(), backlog) != 0) return Error::last("listen " + path);
  return listener;
}

Status refuse_descriptors(int socket) {
  const int off = 0;
  if (::setsockopt(socket, SOL_SOCKET, kernel::kSoPassRights, &off, sizeof off) == 0 || errno == ENOPROTOOPT) {
    return ok();
  }
  return Error::last("setsockopt SO_PASSRIGHTS");
}

Result<ucred> peer_of(int connection) {
  ucred peer{};
  socklen_t size = sizeof peer;
  if (::getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return Error::last("getsockopt SO_PEERCRED");
  return peer;
}

Result<std::shared_ptr<Acceptor>> Acceptor::start(EventLoop& loop, Fd listener, Deliver deliver) {
  int flags = ::fcntl(listener.get(), F_GETFL);
  if (flags < 0 || ::fcntl(listener.get(), F_SETFL, flags | O_NONBLOCK) != 0) return Error::last("fcntl listener");
  std::shared_ptr<Acceptor> acceptor(new Acceptor(loop, std::move(listener), std::move(deliver)));
  Acceptor* self = acceptor.get();  // stop() ends the source before the acceptor goes
  auto source = loop.add(acceptor->listener_.get(), [self](uint32_t) { self->on_event(); });
  if (!source) return source.error();
  acceptor->source_ = *source;
  auto armed = loop.arm(*source, EPOLLIN);
  if (!armed) return armed.error();
  return acceptor;
}

void Acceptor::resume() { (void)loop_.arm(source_, EPOLLIN); }

void Acceptor::stop() {
  loop_.remove(source_);
  listener_.reset();
}

void Acceptor::on_event() {
  std::vector<Connection> batch;
  bool shortage = false;
  while (batch.size() < kAcceptBatch) {
    Connection connection;
    connection.fd.reset(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!connection.fd.valid()) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      shortage = errno != EAGAIN;
      break;
    }
    auto peer = peer_of(connection.fd.get());
    if (!peer) continue;
    connection.peer = *peer;
    batch.push_back(std::move(connection));
  }
  if (!batch.empty()) {
    deliver_(std::move(batch));
  } else if (shortage) {
    (void)loop_.arm(source_, 0, Deadline::after_ms(kShortageMs));
  } else {
    resume();
  }
}

}  // namespace privsep
