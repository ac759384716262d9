// Messages as passt sends them with its sockets. Input: number of TCP sockets, what comes with them (1: a socket of
// another kind, 2: credentials), then the data.
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cstring>
#include <vector>

#include "../src/passt_repair.h"
#include "target.h"

using namespace privsep;

namespace {

constexpr size_t kMaxSent = 20;

void send(int socket, const std::vector<int>& descriptors, bool credentials, const uint8_t* data, size_t size) {
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * (kMaxSent + 1)) + CMSG_SPACE(sizeof(ucred))]{};
  iovec part{const_cast<uint8_t*>(data), size};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  size_t used = 0;
  if (!descriptors.empty()) {
    size_t bytes = sizeof(int) * descriptors.size();
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(bytes);
    std::memcpy(CMSG_DATA(header), descriptors.data(), bytes);
    used += CMSG_SPACE(bytes);
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
  (void)::sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
}

// The lowest free number: it rises when a descriptor has been left open.
int lowest_free() {
  Fd probe(::fcntl(0, F_DUPFD_CLOEXEC, 0));
  return probe.get();
}

int repair_of(int socket) {
  int value = 0;
  socklen_t size = sizeof value;
  PROMISE(::getsockopt(socket, IPPROTO_TCP, TCP_REPAIR, &value, &size) == 0);
  return value;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  struct stat netns {};
  PROMISE(::stat("/proc/self/ns/net", &netns) == 0);
  size_t count = data[0] % (kMaxSent + 1);
  bool other = (data[1] & 1) != 0;
  bool credentials = (data[1] & 2) != 0;
  int free_before = lowest_free();
  {
    int pair[2];
    PROMISE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
    Fd near(pair[0]);
    Fd far(pair[1]);
    int on = 1;
    if (credentials) PROMISE(::setsockopt(near.get(), SOL_SOCKET, SO_PASSCRED, &on, sizeof on) == 0);
    Fd tcp(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    PROMISE(tcp.valid());
    std::vector<int> sent(count, tcp.get());
    if (other) sent.push_back(far.get());
    send(far.get(), sent, credentials, data + 2, size - 2);
    auto switched = repair_message(near.get(), netns);
    // Switching takes CAP_NET_ADMIN, so whoever runs this without it sees that fail.
    bool switchable = switched || switched.error().code != EPERM;
    auto value = size > 2 ? static_cast<int8_t>(data[2]) : 0;
    bool right = size > 2 && value >= -1 && value <= 1 && count > 0 && !other;
    if (switchable && size > 2) PROMISE((switched && *switched) == right);
    if (switched && *switched) PROMISE(**switched == count);
    PROMISE(repair_of(tcp.get()) == (right && switchable && value == 1 ? 1 : 0));
  }
  PROMISE(lowest_free() == free_before);
  return 0;
}
