// A netlink socket whose other end has answered in advance: the input, as datagrams with a 16-bit length before
// each. Answers are numbered from 1 like the requests, so an input is a whole conversation.
#pragma once

#include <sys/socket.h>

#include "../src/net_socket.h"
#include "target.h"

namespace privsep::fuzz {

class FakeKernel {
 public:
  FakeKernel(const uint8_t* data, size_t size) : socket_(connect()) {
    while (size >= 2) {
      size_t length = data[0] | data[1] << 8;
      data += 2;
      size -= 2;
      if (length > size) length = size;
      // What does not fit the socket's buffer is left out.
      if (::send(kernel_.get(), data, length, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) return;
      data += length;
      size -= length;
    }
  }

  NetlinkSocket& socket() { return socket_; }

 private:
  NetlinkSocket connect() {
    int pair[2];
    // Not waiting stands for the receive timeout. SEQPACKET ignores the kernel's address that is sent to.
    PROMISE(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) == 0);
    kernel_.reset(pair[0]);
    return NetlinkSocket(Fd(pair[1]));
  }

  Fd kernel_;
  NetlinkSocket socket_;
};

}  // namespace privsep::fuzz
