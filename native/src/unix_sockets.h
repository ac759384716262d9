// Listening sockets of our own, and accepting on them.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "event_loop.h"
#include "fd.h"
#include "result.h"

namespace privsep {

// Binds and listens, non-blocking. An old socket at the path is replaced, anything else refused. Nobody can
// connect before mode and group are set.
Result<Fd> listen_unix(const std::string& path, int type, mode_t mode, gid_t gid, int backlog);

// From now on nobody can send descriptors to the socket, nor to those that are accepted on it: EPERM. Whoever reads
// lets go of what it did not ask for, and the last close of a TCP socket may wait as long as its sender likes
// (SO_LINGER). Before Linux 6.16 there is nothing against it.
Status refuse_descriptors(int socket);

Result<ucred> peer_of(int connection);

struct Connection {
  Fd fd;
  ucred peer{};
};

// Accepts in batches; each waits for resume() before the next, so that a flood stays in the backlog.
class Acceptor {
 public:
  using Deliver = std::function<void(std::vector<Connection>)>;

  static Result<std::shared_ptr<Acceptor>> start(EventLoop& loop, Fd listener, Deliver deliver);
  ~Acceptor() { stop(); }
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;

  void resume();
  // Closes the listener. Not from the handler.
  void stop();

 private:
  Acceptor(EventLoop& loop, Fd listener, Deliver deliver)
      : loop_(loop), listener_(std::move(listener)), deliver_(std::move(deliver)) {}
  void on_event();

  EventLoop& loop_;
  Fd listener_;
  Deliver deliver_;
  EventLoop::SourceId source_ = 0;
};

}  // namespace privsep
