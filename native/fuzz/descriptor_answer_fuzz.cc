// SCM_RIGHTS messages as the claimant of a descriptor receives them. Input: number of descriptors, whether
// credentials come along, then the data.
#include <fcntl.h>
#include <sys/socket.h>

#include <cstring>

#include "../src/descriptor_channel.h"
#include "target.h"

using namespace privsep;

namespace {

constexpr size_t kMaxSent = 40;

Status send(int socket, size_t descriptors, bool credentials, const uint8_t* data, size_t size) {
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxSent) + CMSG_SPACE(sizeof(ucred))]{};
  iovec part{const_cast<uint8_t*>(data), size};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  size_t used = 0;
  if (descriptors > 0) {
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int) * descriptors);
    for (size_t i = 0; i < descriptors; ++i) std::memcpy(CMSG_DATA(header) + i * sizeof(int), &socket, sizeof socket);
    used += CMSG_SPACE(sizeof(int) * descriptors);
    header = CMSG_NXTHDR(&message, header);
  }
  if (credentials) {
    ucred own{::getpid(), ::getuid(), ::getgid()};
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_CREDENTIALS;
    header->cmsg_len = CMSG_LEN(sizeof own);
    std::memcpy(CMSG_DATA(header), &own, sizeof own);
    used += CMSG_SPACE(sizeof own);
  }
  message.msg_controllen = used;
  if (used == 0) message.msg_control = nullptr;
  return ::sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 ? Status(Error::last("sendmsg")) : ok();
}

// The lowest free number: it rises when a descriptor has been left open.
int lowest_free() {
  Fd probe(::fcntl(0, F_DUPFD_CLOEXEC, 0));
  return probe.get();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  size_t descriptors = data[0] % (kMaxSent + 1);
  bool credentials = (data[1] & 1) != 0;
  bool passing = (data[1] & 2) != 0;
  int free_before = lowest_free();
  {
    int pair[2];
    PROMISE(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0);
    Fd near(pair[0]);
    Fd far(pair[1]);
    int on = 1;
    // Credentials are delivered to who asks for them: one more header before the descriptors.
    if (passing) PROMISE(::setsockopt(near.get(), SOL_SOCKET, SO_PASSCRED, &on, sizeof on) == 0);
    Status sent = send(far.get(), descriptors, credentials, data + 2, size - 2);
    Result<Fd> received = receive_descriptor(near.get());
    bool right = sent && size == 3 && data[2] == 0 && descriptors == 1;
    PROMISE(static_cast<bool>(received) == right);
    if (received) PROMISE((::fcntl(received->get(), F_GETFD) & FD_CLOEXEC) != 0);
  }
  PROMISE(lowest_free() == free_before);
  return 0;
}
