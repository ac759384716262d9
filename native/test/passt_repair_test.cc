// Sockets that passt hands over.
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <cstring>

#include "../src/passt_repair.h"
#include "check.h"
#include "fixture.h"

using namespace privsep;
using namespace privsep::test;

namespace {

struct Conversation {
  Conversation() {
    int pair[2] = {-1, -1};
    CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
    helper.reset(pair[0]);
    passt.reset(pair[1]);
    CHECK(::stat("/proc/self/ns/net", &netns) == 0);
  }

  Result<std::optional<size_t>> hand_over(int8_t value, const std::vector<int>& sockets) {
    send(value, sockets);
    return repair_message(helper.get(), netns);
  }

  void send(int8_t value, const std::vector<int>& sockets) const {
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxRepaired)]{};
    iovec data{&value, sizeof value};
    msghdr message{};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    if (!sockets.empty()) {
      message.msg_control = control;
      message.msg_controllen = CMSG_SPACE(sizeof(int) * sockets.size());
      cmsghdr* header = CMSG_FIRSTHDR(&message);
      header->cmsg_level = SOL_SOCKET;
      header->cmsg_type = SCM_RIGHTS;
      header->cmsg_len = CMSG_LEN(sizeof(int) * sockets.size());
      std::memcpy(CMSG_DATA(header), sockets.data(), sizeof(int) * sockets.size());
    }
    CHECK(::sendmsg(passt.get(), &message, MSG_NOSIGNAL) == 1);
  }

  // The byte that came back; 127 for none.
  int8_t answer() const {
    int8_t value = 127;
    return ::recv(passt.get(), &value, sizeof value, MSG_DONTWAIT) == 1 ? value : static_cast<int8_t>(127);
  }

  Fd helper;
  Fd passt;
  struct stat netns {};
};

Fd tcp(int family = AF_INET) { return Fd(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0)); }

int repair_of(const Fd& socket) {
  int value = -1;
  socklen_t size = sizeof value;
  CHECK(::getsockopt(socket.get(), IPPROTO_TCP, TCP_REPAIR, &value, &size) == 0);
  return value;
}

Fd tcp_that_waits(int seconds) {
  Fd socket = tcp();
  const linger waits{1, seconds};
  CHECK(::setsockopt(socket.get(), SOL_SOCKET, SO_LINGER, &waits, sizeof waits) == 0);
  return socket;
}

// How long close() waits; -1 for a socket that is not told to.
int waits(const Fd& socket) {
  linger value{};
  socklen_t size = sizeof value;
  CHECK(::getsockopt(socket.get(), SOL_SOCKET, SO_LINGER, &value, &size) == 0);
  return value.l_onoff == 0 ? -1 : value.l_linger;
}

}  // namespace

TEST(tcp_sockets_of_both_families_are_switched_and_answered) {
  Conversation conversation;
  Fd four = tcp();
  Fd six = tcp(AF_INET6);
  for (int value : {TCP_REPAIR_ON, TCP_REPAIR_OFF, TCP_REPAIR_ON, TCP_REPAIR_OFF_NO_WP}) {
    auto switched = conversation.hand_over(static_cast<int8_t>(value), {four.get(), six.get()});
    REQUIRE(switched && *switched);
    CHECK(**switched == 2);
    CHECK(conversation.answer() == value);
    CHECK(repair_of(four) == (value == TCP_REPAIR_ON ? 1 : 0) && repair_of(six) == repair_of(four));
  }
  conversation.passt.reset();
  auto end = repair_message(conversation.helper.get(), conversation.netns);
  CHECK(end && !*end);
}

TEST(a_message_with_anything_else_changes_no_socket) {
  Fd good = tcp();
  Fd udp(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  Fd raw(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 262));  // MPTCP: TCP_REPAIR is none of its options
  Fd directory(::open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  std::vector<std::vector<int>> offers = {{}, {good.get(), udp.get()}, {good.get(), directory.get()}};
  if (raw.valid()) offers.push_back({good.get(), raw.get()});
  for (const auto& offer : offers) {
    Conversation conversation;
    auto switched = conversation.hand_over(TCP_REPAIR_ON, offer);
    CHECK(!switched && switched.error().refused && switched.error().unchanged);
    CHECK(conversation.answer() == 127);
  }
  Conversation conversation;
  CHECK(conversation.hand_over(2, {good.get()}).error().code == EBADMSG);
  CHECK(repair_of(good) == 0);
}

TEST(sockets_of_another_network_namespace_are_refused) {
  CHECK(in_child([] {
    Conversation conversation;  // remembers the namespace before the next line
    Fd own = tcp();
    if (::unshare(CLONE_NEWNET) != 0) return false;
    Fd foreign = tcp();
    auto switched = conversation.hand_over(TCP_REPAIR_ON, {own.get(), foreign.get()});
    bool refused = !switched && switched.error().code == EPERM && switched.error().refused;
    return refused && repair_of(own) == 0 && repair_of(foreign) == 0;
  }));
}

TEST(a_listener_cannot_be_switched) {
  Conversation conversation;
  Fd good = tcp();
  Fd listener = tcp();
  CHECK(::listen(listener.get(), 1) == 0);
  auto switched = conversation.hand_over(TCP_REPAIR_ON, {good.get(), listener.get()});
  CHECK(!switched && switched.error().code == EPERM && !switched.error().unchanged);
}

TEST(no_socket_makes_its_last_close_wait) {
  Fd udp(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  for (bool good : {true, false}) {
    Conversation conversation;
    Fd slow = tcp_that_waits(3600);
    Fd at_once = tcp_that_waits(0);
    std::vector<int> offer = {slow.get(), at_once.get()};
    if (!good) offer.push_back(udp.get());
    CHECK(static_cast<bool>(conversation.hand_over(TCP_REPAIR_ON, offer)) == good);
    CHECK(waits(slow) == -1);
    CHECK(waits(at_once) == 0);
  }
}

TEST(nor_does_one_that_was_not_read) {
  Conversation conversation;
  Fd first = tcp_that_waits(3600);
  Fd second = tcp_that_waits(3600);
  conversation.send(TCP_REPAIR_ON, {first.get()});
  conversation.send(TCP_REPAIR_ON, {second.get()});
  { PasstConnection connection(std::move(conversation.helper)); }
  CHECK(waits(first) == -1 && waits(second) == -1);
}
