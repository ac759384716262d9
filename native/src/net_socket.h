// One netlink socket, bound to the network namespace in which it was opened.
#pragma once

#include <functional>

#include "fd.h"
#include "net_message.h"
#include "result.h"

namespace privsep {

class NetlinkSocket {
 public:
  // `protocol`: NETLINK_ROUTE or NETLINK_NETFILTER.
  static Result<NetlinkSocket> open(int protocol);
  // Takes over a bound socket with a receive timeout; what stands in for the kernel may be at its other end.
  explicit NetlinkSocket(Fd fd) : fd_(std::move(fd)) {}

  // Sends one request that asks for an acknowledgement and returns the kernel's answer.
  // `fill` writes what follows the message header.
  Status request(uint16_t type, uint16_t flags, const std::string& operation,
                 const std::function<void(MessageBuilder&)>& fill);

  // Sends a dump request and hands every message of the answer to `each`, which returns 0 or an
  // errno that ends the dump (EPROTO: malformed, E2BIG: beyond a bound). A dump during which the listed
  // things changed is EAGAIN.
  Status dump(uint16_t type, const std::string& operation, const std::function<void(MessageBuilder&)>& fill,
              const std::function<int(const Message&)>& each);

  // As request, for one that is answered by a message before the acknowledgement; `each` as in dump.
  Status query(uint16_t type, const std::string& operation, const std::function<void(MessageBuilder&)>& fill,
               const std::function<int(const Message&)>& each);

  // Sends several messages, numbered `first` to `last`, in one datagram. The last one must ask for an
  // acknowledgement. The first error, if any, is the result.
  Status batch(const MessageBuilder& messages, uint32_t first, uint32_t last, const std::string& operation);
  uint32_t next_sequence() { return ++sequence_; }

 private:
  Status send(const MessageBuilder& message, const std::string& operation);
  Status exchange(const MessageBuilder& messages, uint32_t first, uint32_t last, const std::string& operation,
                  const std::function<int(const Message&)>& each);
  Result<Bytes> receive(const std::string& operation);

  Fd fd_;
  uint32_t sequence_ = 0;
  std::vector<uint8_t> buffer_;
};

}  // namespace privsep
