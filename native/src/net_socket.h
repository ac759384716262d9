// One netlink socket, bound to the network namespace in which it was opened.
#pragma once

#include <functional>
#include <optional>

#include "deadline.h"
#include "fd.h"
#include "net_message.h"
#include "result.h"

namespace privsep {

// The largest answer of interest, NAT tables with 1024 ports in both families, takes 2.6 MiB.
inline constexpr size_t kMaxDumped = 8 << 20;

class NetlinkSocket {
 public:
  // `protocol`: NETLINK_ROUTE or NETLINK_NETFILTER. Dumps end at the deadline with ETIMEDOUT.
  static Result<NetlinkSocket> open(int protocol, std::optional<Deadline> deadline = std::nullopt);
  // Takes over a bound socket with a receive timeout; what stands in for the kernel may be at its other end.
  explicit NetlinkSocket(Fd fd, std::optional<Deadline> deadline = std::nullopt)
      : fd_(std::move(fd)), deadline_(deadline) {}

  // Sends one request that asks for an acknowledgement and returns the kernel's answer.
  // `fill` writes what follows the message header.
  Status request(uint16_t type, uint16_t flags, const std::string& operation,
                 const std::function<void(MessageBuilder&)>& fill);

  // Sends a dump request and hands every message of the answer to `each`, which returns 0 or an
  // errno that ends the dump (EPROTO: malformed, E2BIG: beyond a bound). A dump during which the listed
  // things changed is EAGAIN; more than kMaxDumped in all dumps of a socket are E2BIG.
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
  std::optional<Deadline> deadline_;
  size_t dumped_ = 0;  // bytes
  uint32_t sequence_ = 0;
  std::vector<uint8_t> buffer_;
};

}  // namespace privsep
