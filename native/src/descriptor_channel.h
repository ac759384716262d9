// Passing descriptors beside the RPC connection: one request message, one answer of a status byte and at most
// one descriptor, on a SEQPACKET socket.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "event_loop.h"
#include "fd.h"
#include "unix_sockets.h"

namespace privsep {

inline constexpr size_t kMaxRequest = 4096;

class DescriptorServer {
 public:
  struct Limits {
    size_t max_bytes;
    int64_t timeout_ms;  // for the request, and again for the answer to it
    size_t max_connections;
    uid_t uid;  // of those who are served
  };
  // Each is to be answered, the refused ones too: until then they are open, and nobody else is let in while some are
  // that were refused as they came.
  struct Request {
    uint64_t id = 0;  // for reply()
    std::string bytes;
    ucred peer{};
    // Why it is to be refused. EACCES: another user. EAGAIN: as many connections as allowed. EMSGSIZE: longer than
    // max_bytes. ETIMEDOUT: nothing came in time.
    int refusal = 0;
  };
  using Deliver = std::function<void(Request)>;

  static Result<std::shared_ptr<DescriptorServer>> start(EventLoop& loop, Fd listener, Limits limits,
                                                         Deliver deliver);
  ~DescriptorServer() { stop(); }
  DescriptorServer(const DescriptorServer&) = delete;
  DescriptorServer& operator=(const DescriptorServer&) = delete;

  // Sends the answer and ends the connection; nothing when it has ended already. `fd` may be invalid.
  void reply(uint64_t id, uint8_t status, Fd fd);
  void stop();

 private:
  struct Open {
    Connection connection;
    EventLoop::SourceId source = 0;
    bool delivered = false;
    bool unwanted = false;  // refused as it came
  };

  DescriptorServer(EventLoop& loop, Limits limits, Deliver deliver)
      : loop_(loop), limits_(limits), deliver_(std::move(deliver)) {}
  void on_connections(std::vector<Connection> batch);
  void on_event(uint64_t id, uint32_t events);
  void deliver(Open& open, Request request);
  bool is_full() const { return open_.size() - unwanted_ >= limits_.max_connections; }
  void close(uint64_t id);

  EventLoop& loop_;
  const Limits limits_;
  Deliver deliver_;
  std::shared_ptr<Acceptor> acceptor_;
  std::mutex mutex_;
  std::unordered_map<uint64_t, std::shared_ptr<Open>> open_;
  uint64_t next_id_ = 1;
  size_t unwanted_ = 0;
  bool paused_ = false;
};

// One redemption. Calls back exactly once, unless cancelled: with the descriptor, or with the error, that of a
// non-zero status included.
class DescriptorClaim {
 public:
  using Done = std::function<void(Result<Fd>)>;

  static Result<std::shared_ptr<DescriptorClaim>> start(EventLoop& loop, const std::string& path,
                                                        const std::string& ticket, int64_t timeout_ms, Done done);
  ~DescriptorClaim();
  DescriptorClaim(const DescriptorClaim&) = delete;
  DescriptorClaim& operator=(const DescriptorClaim&) = delete;

 private:
  DescriptorClaim(EventLoop& loop, Fd socket, Done done)
      : loop_(loop), socket_(std::move(socket)), done_(std::move(done)) {}

  EventLoop& loop_;
  Fd socket_;
  Done done_;
  EventLoop::SourceId source_ = 0;
};

// Receives the answer: exactly one descriptor with status 0, none otherwise.
Result<Fd> receive_descriptor(int socket);
// Sends an answer; `fd` negative for none.
Status send_descriptor(int socket, uint8_t status, int fd);

}  // namespace privsep
