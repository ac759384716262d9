#include "net_socket.h"

#include <sys/socket.h>
#include <sys/time.h>

namespace privsep {
namespace {

// The kernel never makes a dump datagram larger than this (NLMSG_GOODSIZE, 32 KiB at most).
constexpr size_t kReceiveBuffer = 64 * 1024;
// Datagrams of one answer: 6144 NAT rules, the largest answer of interest, take about 200.
constexpr int kMaxDatagrams = 4096;
constexpr timeval kTimeout{2, 0};
// MAX_ERRNO of the kernel.
constexpr int32_t kMaxErrno = 4095;

Status status_of(int error, const std::string& operation) {
  return error == 0 ? ok() : Status(Error::of(error, operation));
}

// The errno of an NLMSG_ERROR or NLMSG_DONE message; EPROTO when it is cut short or not an errno.
int error_of(const Message& message) {
  int32_t error = 0;
  if (message.payload.size < sizeof error) return EPROTO;
  std::memcpy(&error, message.payload.data, sizeof error);
  return error > 0 || error < -kMaxErrno ? EPROTO : -error;
}

}  // namespace

Result<NetlinkSocket> NetlinkSocket::open(int protocol, std::optional<Deadline> deadline) {
  Fd fd(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, protocol));
  if (!fd.valid()) return Error::last("socket netlink");
  int on = 1;
  // Without it an error would carry the whole request back, which for a large batch is megabytes.
  if (::setsockopt(fd.get(), SOL_NETLINK, NETLINK_CAP_ACK, &on, sizeof on) != 0)
    return Error::last("setsockopt netlink");
  if (::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &kTimeout, sizeof kTimeout) != 0)
    return Error::last("setsockopt netlink");
  sockaddr_nl address{};
  address.nl_family = AF_NETLINK;
  if (::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) return Error::last("bind netlink");
  return NetlinkSocket(std::move(fd), deadline);
}

Status NetlinkSocket::send(const MessageBuilder& message, const std::string& operation) {
  if (message.overflowed()) return Error::of(E2BIG, operation);
  Bytes bytes = message.bytes();
  // A datagram must fit the send buffer whole; the default holds about 200 KiB.
  int size = static_cast<int>(bytes.size * 2);
  if (bytes.size > 64 * 1024 && ::setsockopt(fd_.get(), SOL_SOCKET, SO_SNDBUFFORCE, &size, sizeof size) != 0)
    return Error::last(operation);
  sockaddr_nl kernel{};
  kernel.nl_family = AF_NETLINK;
  ssize_t sent = ::sendto(fd_.get(), bytes.data, bytes.size, 0, reinterpret_cast<sockaddr*>(&kernel), sizeof kernel);
  if (sent < 0) return Error::last(operation);
  return static_cast<size_t>(sent) == bytes.size ? ok() : Status(Error::of(EMSGSIZE, operation));
}

Result<Bytes> NetlinkSocket::receive(const std::string& operation) {
  buffer_.resize(kReceiveBuffer);
  sockaddr_nl from{};
  socklen_t from_size = sizeof from;
  ssize_t size =
      ::recvfrom(fd_.get(), buffer_.data(), buffer_.size(), MSG_TRUNC, reinterpret_cast<sockaddr*>(&from), &from_size);
  if (size < 0) return Error::of(errno == EAGAIN ? ETIMEDOUT : errno, operation);
  if (static_cast<size_t>(size) > buffer_.size()) return Error::of(EMSGSIZE, operation);
  // Only the kernel has port 0; another process may send to our port.
  if (from.nl_pid != 0) return Bytes{};
  return Bytes{buffer_.data(), static_cast<size_t>(size)};
}

Status NetlinkSocket::request(uint16_t type, uint16_t flags, const std::string& operation,
                              const std::function<void(MessageBuilder&)>& fill) {
  MessageBuilder message;
  uint32_t sequence = ++sequence_;
  message.begin(type, static_cast<uint16_t>(NLM_F_REQUEST | NLM_F_ACK | flags), sequence);
  fill(message);
  message.end();
  return batch(message, sequence, sequence, operation);
}

Status NetlinkSocket::query(uint16_t type, const std::string& operation,
                            const std::function<void(MessageBuilder&)>& fill,
                            const std::function<int(const Message&)>& each) {
  MessageBuilder message;
  uint32_t sequence = ++sequence_;
  message.begin(type, NLM_F_REQUEST | NLM_F_ACK, sequence);
  fill(message);
  message.end();
  return exchange(message, sequence, sequence, operation, each);
}

Status NetlinkSocket::batch(const MessageBuilder& messages, uint32_t first, uint32_t last,
                            const std::string& operation) {
  return exchange(messages, first, last, operation, [](const Message&) { return 0; });
}

Status NetlinkSocket::exchange(const MessageBuilder& messages, uint32_t first, uint32_t last,
                               const std::string& operation, const std::function<int(const Message&)>& each) {
  Status sent = send(messages, operation);
  if (!sent) return sent;
  // The first error is the cause; later ones follow from it. Every message was handled before send
  // returned, so the acknowledgement of the last one ends the answer.
  int error = 0;
  for (int i = 0; i < kMaxDatagrams; ++i) {
    Result<Bytes> datagram = receive(operation);
    if (!datagram) return error != 0 ? status_of(error, operation) : Status(datagram.error());
    MessageReader reader(*datagram);
    Message message;
    while (reader.next(&message)) {
      if (message.sequence < first || message.sequence > last) continue;
      if (error == 0) error = message.type == NLMSG_ERROR ? error_of(message) : each(message);
      if (message.type != NLMSG_ERROR) continue;
      // A batch that fails as a whole is answered on its first message; nothing else may follow.
      if (message.sequence == last || (message.sequence == first && error != 0)) return status_of(error, operation);
    }
    if (reader.malformed()) return Error::of(EPROTO, operation);
  }
  return Error::of(E2BIG, operation);
}

Status NetlinkSocket::dump(uint16_t type, const std::string& operation,
                           const std::function<void(MessageBuilder&)>& fill,
                           const std::function<int(const Message&)>& each) {
  MessageBuilder message;
  uint32_t sequence = ++sequence_;
  message.begin(type, NLM_F_REQUEST | NLM_F_DUMP, sequence);
  fill(message);
  message.end();
  Status sent = send(message, operation);
  if (!sent) return sent;
  bool interrupted = false;
  for (int i = 0; i < kMaxDatagrams; ++i) {
    if (deadline_ && deadline_->passed()) return Error::of(ETIMEDOUT, operation);
    Result<Bytes> datagram = receive(operation);
    if (!datagram) return datagram.error();
    dumped_ += datagram->size;
    if (dumped_ > kMaxDumped) return Error::of(E2BIG, operation);
    MessageReader reader(*datagram);
    Message answer;
    while (reader.next(&answer)) {
      if (answer.sequence != sequence) continue;
      if (answer.flags & NLM_F_DUMP_INTR) interrupted = true;
      if (answer.type == NLMSG_ERROR) return status_of(error_of(answer), operation);
      if (answer.type == NLMSG_DONE) {
        int error = error_of(answer);
        if (error > 0) return Error::of(error, operation);
        return interrupted ? Status(Error::of(EAGAIN, operation)) : ok();
      }
      int refused = each(answer);
      if (refused != 0) return Error::of(refused, operation);
    }
    if (reader.malformed()) return Error::of(EPROTO, operation);
  }
  return Error::of(E2BIG, operation);
}

}  // namespace privsep
