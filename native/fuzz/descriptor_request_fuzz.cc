// What a claimant sends to the descriptor channel. Input: number of descriptors sent along, then the message.
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>

#include "../src/descriptor_channel.h"
#include "target.h"

using namespace privsep;

namespace {

constexpr size_t kMaxBytes = 33;  // as the helper: a ticket and one byte more
constexpr size_t kMaxSent = 16;
constexpr int kPatienceMs = 5000;

// One server for the life of the process. It answers every request with EACCES.
class Channel {
 public:
  Channel() {
    auto loop = EventLoop::start();
    PROMISE(loop);
    loop_ = std::move(*loop);
    Fd listener(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    address_.sun_family = AF_UNIX;
    // Without a name: the kernel chooses one in the abstract name space.
    PROMISE(::bind(listener.get(), address(), sizeof address_.sun_family) == 0);
    size_ = sizeof address_;
    PROMISE(::getsockname(listener.get(), address(), &size_) == 0);
    PROMISE(::listen(listener.get(), 16) == 0);
    auto server = DescriptorServer::start(*loop_, std::move(listener), {kMaxBytes, kPatienceMs, 64, ::geteuid()},
                                          [this](DescriptorServer::Request request) { deliver(std::move(request)); });
    PROMISE(server);
    server_ = *server;
  }

  ~Channel() { server_->stop(); }

  Fd connect() const {
    Fd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    PROMISE(::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address_), size_) == 0);
    return socket;
  }

  // The request that came last.
  std::string last() {
    std::lock_guard<std::mutex> lock(mutex_);
    return last_;
  }

 private:
  sockaddr* address() { return reinterpret_cast<sockaddr*>(&address_); }

  void deliver(DescriptorServer::Request request) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      last_ = request.bytes;
    }
    server_->reply(request.id, request.refusal != 0 ? static_cast<uint8_t>(request.refusal) : EACCES, Fd());
  }

  std::unique_ptr<EventLoop> loop_;
  std::shared_ptr<DescriptorServer> server_;
  sockaddr_un address_{};
  socklen_t size_ = 0;
  std::mutex mutex_;
  std::string last_;
};

void send(int socket, size_t descriptors, const uint8_t* data, size_t size) {
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxSent)]{};
  iovec part{const_cast<uint8_t*>(data), size};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (descriptors > 0) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(sizeof(int) * descriptors);
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int) * descriptors);
    for (size_t i = 0; i < descriptors; ++i) std::memcpy(CMSG_DATA(header) + i * sizeof(int), &socket, sizeof socket);
  }
  PROMISE(::sendmsg(socket, &message, MSG_NOSIGNAL) == static_cast<ssize_t>(size));
}

// The engine's own timer interrupts poll(2).
bool wait_readable(int socket) {
  pollfd waiting{socket, POLLIN, 0};
  int ready = 0;
  do {
    ready = ::poll(&waiting, 1, kPatienceMs);
  } while (ready < 0 && errno == EINTR);
  return ready == 1;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Channel channel;
  if (size == 0) return 0;
  Fd socket = channel.connect();
  size_t descriptors = data[0] % (kMaxSent + 1);
  ++data;
  --size;
  send(socket.get(), descriptors, data, size);
  PROMISE(wait_readable(socket.get()));
  Result<Fd> received = receive_descriptor(socket.get());
  PROMISE(!received);
  if (size == 0) {
    PROMISE(received.error().code == ECONNRESET);
  } else if (size > kMaxBytes) {
    PROMISE(received.error().code == EMSGSIZE);
  } else {
    PROMISE(received.error().code == EACCES);
    PROMISE(channel.last() == fuzz::text_of(data, size));
  }
  return 0;
}
