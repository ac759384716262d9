#include "descriptor_channel.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstring>
#include <utility>
#include <vector>

namespace privsep {

namespace {
// Room for more than is allowed, so that what comes is seen and closed.
constexpr size_t kMaxReceived = 16;
}  // namespace

Result<Fd> receive_descriptor(int socket) {
  unsigned char status = 0;
  iovec data{&status, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxReceived)];
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  ssize_t n = ::recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (n < 0) return Error::last("recvmsg descriptor channel");
  std::vector<Fd> received;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof fd);
      received.emplace_back(fd);
    }
  }
  if (n == 0) return Error::of(ECONNRESET, "descriptor channel");
  if (n != 1 || (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) return Error::refusal(EBADMSG, "descriptor answer");
  if (status != 0) return Error::of(status, "claim descriptor");
  if (received.size() != 1) return Error::refusal(EBADMSG, "descriptor answer without exactly one descriptor");
  return std::move(received[0]);
}

Status send_descriptor(int socket, uint8_t status, int fd) {
  iovec data{&status, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))]{};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  if (fd >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  }
  if (::sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL) != 1) return Error::last("sendmsg descriptor channel");
  return ok();
}

Result<std::shared_ptr<DescriptorServer>> DescriptorServer::start(EventLoop& loop, Fd listener, Limits limits,
                                                                  Deliver deliver) {
  std::shared_ptr<DescriptorServer> server(new DescriptorServer(loop, limits, std::move(deliver)));
  DescriptorServer* self = server.get();  // stop() ends the acceptor before the server goes
  // Held while the acceptor may call already but is not noted yet.
  std::lock_guard<std::mutex> lock(server->mutex_);
  auto acceptor = Acceptor::start(
      loop, std::move(listener), [self](std::vector<Connection> batch) { self->on_connections(std::move(batch)); });
  if (!acceptor) return acceptor.error();
  server->acceptor_ = *acceptor;
  return server;
}

void DescriptorServer::on_connections(std::vector<Connection> batch) {
  std::vector<std::pair<std::shared_ptr<Open>, Request>> unwanted;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (Connection& connection : batch) {
      Request request{next_id_++, {}, connection.peer};
      if (connection.peer.uid != limits_.uid) {
        request.refusal = EACCES;
      } else if (is_full()) {
        request.refusal = EAGAIN;
      }
      auto open = std::make_shared<Open>();
      open->connection = std::move(connection);
      open->unwanted = request.refusal != 0;
      auto source = loop_.add(open->connection.fd.get(),
                              [this, id = request.id](uint32_t events) { on_event(id, events); });
      if (!source) continue;
      open->source = *source;
      if (!open->unwanted && !loop_.arm(*source, EPOLLIN, Deadline::after_ms(limits_.timeout_ms))) {
        loop_.remove(*source);
        continue;
      }
      open_.emplace(request.id, open);
      if (!open->unwanted) continue;
      ++unwanted_;
      unwanted.emplace_back(open, std::move(request));
    }
    paused_ = is_full() || unwanted_ > 0;
    if (!paused_) acceptor_->resume();
  }
  for (auto& [open, request] : unwanted) deliver(*open, std::move(request));
}

void DescriptorServer::deliver(Open& open, Request request) {
  open.delivered = true;
  (void)loop_.arm(open.source, 0, Deadline::after_ms(limits_.timeout_ms));
  deliver_(std::move(request));
}

void DescriptorServer::on_event(uint64_t id, uint32_t events) {
  std::shared_ptr<Open> open;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = open_.find(id);
    if (found == open_.end()) return;
    open = found->second;
  }
  const ucred peer = open->connection.peer;
  if (open->delivered) {
    if (events == 0) reply(id, ETIMEDOUT, Fd());
    return;
  }
  if (events == 0) return deliver(*open, {id, {}, peer, ETIMEDOUT});
  std::string bytes(limits_.max_bytes, '\0');
  iovec data{bytes.data(), bytes.size()};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  // Without room for them, descriptors sent along are dropped by the kernel.
  ssize_t n = ::recvmsg(open->connection.fd.get(), &message, MSG_DONTWAIT);
  if (n <= 0) {
    close(id);
  } else if ((message.msg_flags & MSG_TRUNC) != 0) {
    deliver(*open, {id, {}, peer, EMSGSIZE});
  } else {
    bytes.resize(static_cast<size_t>(n));
    deliver(*open, {id, std::move(bytes), peer});
  }
}

void DescriptorServer::reply(uint64_t id, uint8_t status, Fd fd) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = open_.find(id);
    if (found == open_.end()) return;
    int socket = found->second->connection.fd.get();
    // A message that is unread when the socket is closed would take the place of the answer (ECONNRESET).
    char ignored;
    (void)!::recv(socket, &ignored, sizeof ignored, MSG_DONTWAIT);
    // A peer that has gone away is no failure of ours; the descriptor is closed either way.
    (void)send_descriptor(socket, status, fd.get());
  }
  close(id);
}

void DescriptorServer::close(uint64_t id) {
  std::shared_ptr<Open> open;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = open_.find(id);
    if (found == open_.end()) return;
    open = std::move(found->second);
    open_.erase(found);
    if (open->unwanted) --unwanted_;
    if (paused_ && !is_full() && unwanted_ == 0) {
      paused_ = false;
      acceptor_->resume();
    }
  }
  // Without the lock: the handler that is waited for may want it. The descriptor is closed afterwards.
  loop_.remove(open->source);
}

void DescriptorServer::stop() {
  std::shared_ptr<Acceptor> acceptor;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    acceptor = acceptor_;
  }
  if (acceptor) acceptor->stop();
  std::unordered_map<uint64_t, std::shared_ptr<Open>> open;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    open.swap(open_);
  }
  for (auto& [id, connection] : open) loop_.remove(connection->source);
}

Result<std::shared_ptr<DescriptorClaim>> DescriptorClaim::start(EventLoop& loop, const std::string& path,
                                                                const std::string& ticket, int64_t timeout_ms,
                                                                Done done) {
  if (ticket.empty() || ticket.size() > kMaxRequest) return Error::refusal(EMSGSIZE, "ticket");
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof address.sun_path) return Error::refusal(ENAMETOOLONG, "socket path");
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  Fd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.valid()) return Error::last("socket");
  if (::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
    return Error::last("connect " + path);
  }
  // EPIPE: refused already; the answer is there.
  if (::send(socket.get(), ticket.data(), ticket.size(), MSG_NOSIGNAL) < 0 && errno != EPIPE) {
    return Error::last("send ticket");
  }
  std::shared_ptr<DescriptorClaim> claim(new DescriptorClaim(loop, std::move(socket), std::move(done)));
  DescriptorClaim* self = claim.get();  // the destructor ends the source
  auto source = loop.add(claim->socket_.get(), [self](uint32_t events) {
    self->done_(events == 0 ? Result<Fd>(Error::of(ETIMEDOUT, "claim descriptor"))
                            : receive_descriptor(self->socket_.get()));
  });
  if (!source) return source.error();
  claim->source_ = *source;
  auto armed = loop.arm(*source, EPOLLIN, Deadline::after_ms(timeout_ms));
  if (!armed) return armed.error();
  return claim;
}

DescriptorClaim::~DescriptorClaim() { loop_.remove(source_); }

}  // namespace privsep
