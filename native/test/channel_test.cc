// The event loop and the descriptor channel.
#include "../src/descriptor_channel.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <algorithm>
#include <cstring>
#include <future>
#include <mutex>

#include "../src/inotify.h"
#include "check.h"
#include "fixture.h"

using namespace privsep;
using namespace privsep::test;

static constexpr auto kWait = std::chrono::seconds(10);

struct Pair {
  Fd a;
  Fd b;
  Pair() {
    int fds[2];
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) == 0) {
      a.reset(fds[0]);
      b.reset(fds[1]);
    }
  }
};

static int open_descriptors() {
  int count = 0;
  for (int fd = 0; fd < 1024; ++fd) count += ::fcntl(fd, F_GETFD) >= 0 ? 1 : 0;
  return count;
}

static void send_raw(int socket, const std::string& bytes, const std::vector<int>& fds) {
  iovec data{const_cast<char*>(bytes.data()), bytes.size()};
  std::vector<char> control(CMSG_SPACE(sizeof(int) * fds.size()));
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int) * fds.size());
    std::memcpy(CMSG_DATA(header), fds.data(), sizeof(int) * fds.size());
  }
  CHECK(::sendmsg(socket, &message, 0) == static_cast<ssize_t>(bytes.size()));
}

TEST(answers_carry_exactly_one_descriptor) {
  Pair pair;
  Fd file(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  CHECK(send_descriptor(pair.a.get(), 0, file.get()));
  auto received = receive_descriptor(pair.b.get());
  CHECK(received && (::fcntl(received->get(), F_GETFD) & FD_CLOEXEC) != 0);
  int before = open_descriptors();
  const std::string ok(1, '\0');
  send_raw(pair.a.get(), ok, {file.get(), file.get()});
  CHECK(receive_descriptor(pair.b.get()).error().code == EBADMSG);
  send_raw(pair.a.get(), ok, {});
  CHECK(receive_descriptor(pair.b.get()).error().code == EBADMSG);
  send_raw(pair.a.get(), ok + "x", {file.get()});
  CHECK(receive_descriptor(pair.b.get()).error().code == EBADMSG);
  send_raw(pair.a.get(), ok, std::vector<int>(20, file.get()));
  CHECK(!receive_descriptor(pair.b.get()));
  send_raw(pair.a.get(), std::string(1, static_cast<char>(ENOENT)), {file.get()});
  CHECK(receive_descriptor(pair.b.get()).error().code == ENOENT);
  CHECK(open_descriptors() == before);
  CHECK(receive_descriptor(pair.b.get()).error().code == EAGAIN);
  pair.a.reset();
  CHECK(receive_descriptor(pair.b.get()).error().code == ECONNRESET);
}

TEST(loop_reports_once_until_armed_again) {
  auto loop = EventLoop::start();
  REQUIRE(loop);
  Pair pair;
  std::promise<uint32_t> first;
  std::promise<uint32_t> second;
  int calls = 0;
  auto source = (*loop)->add(pair.b.get(), [&](uint32_t events) {
    if (++calls == 1) first.set_value(events);
    if (calls == 2) second.set_value(events);
  });
  REQUIRE(source);
  send_raw(pair.a.get(), "x", {});
  CHECK((*loop)->arm(*source, EPOLLIN));
  auto got = first.get_future();
  REQUIRE(got.wait_for(kWait) == std::future_status::ready);
  CHECK((got.get() & EPOLLIN) != 0);
  // Still readable, but not armed: only the deadline reports.
  CHECK((*loop)->arm(*source, 0, Deadline::after_ms(50)));
  auto late = second.get_future();
  REQUIRE(late.wait_for(kWait) == std::future_status::ready);
  CHECK(late.get() == 0);
  (*loop)->remove(*source);
  CHECK(calls == 2);
}

TEST(hang_up_of_an_unarmed_source_is_silent) {
  auto loop = EventLoop::start();
  REQUIRE(loop);
  Pair pair;
  std::promise<uint32_t> called;
  auto source = (*loop)->add(pair.b.get(), [&](uint32_t events) { called.set_value(events); });
  pair.a.reset();
  auto got = called.get_future();
  CHECK(got.wait_for(std::chrono::milliseconds(50)) == std::future_status::timeout);
  CHECK((*loop)->arm(*source, EPOLLIN));
  CHECK(got.wait_for(kWait) == std::future_status::ready);
  (*loop)->remove(*source);
}

// A server that answers each ticket with /dev/null, or with ENOENT for "none", and notes why it refused.
struct Served {
  TemporaryDirectory directory;
  std::mutex mutex;
  std::vector<int> refusals;
  std::unique_ptr<EventLoop> loop;
  std::shared_ptr<DescriptorServer> server;
  std::vector<Fd> early;  // connections that are there when it starts
  std::string path() const { return directory.path() + "/fd.sock"; }

  explicit Served(DescriptorServer::Limits limits, int before = 0) {
    loop = std::move(*EventLoop::start());
    auto listener = listen_unix(path(), SOCK_SEQPACKET, 0660, ::getegid(), 16);
    for (int i = 0; i < before; ++i) early.push_back(connect());
    std::promise<DescriptorServer*> itself;
    auto answer = [this, known = itself.get_future().share()](DescriptorServer::Request r) {
      DescriptorServer* handle = known.get();
      if (r.refusal != 0) {
        {
          std::lock_guard<std::mutex> lock(mutex);
          refusals.push_back(r.refusal);
        }
        return handle->reply(r.id, static_cast<uint8_t>(r.refusal), Fd());
      }
      if (r.bytes == "silence") return;
      bool none = r.bytes == "none";
      handle->reply(r.id, none ? ENOENT : 0, none ? Fd() : Fd(::open("/dev/null", O_RDONLY | O_CLOEXEC)));
    };
    server = *DescriptorServer::start(*loop, std::move(*listener), limits, answer);
    itself.set_value(server.get());
  }
  ~Served() { server.reset(); }

  std::vector<int> refused() {
    std::lock_guard<std::mutex> lock(mutex);
    return refusals;
  }

  Fd connect() const {
    Fd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path().c_str(), path().size() + 1);
    CHECK(::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
    return fd;
  }

  static Result<Fd> answer_to(const Fd& connection) {
    pollfd waiting{connection.get(), POLLIN, 0};
    CHECK(::poll(&waiting, 1, 10000) == 1);
    return receive_descriptor(connection.get());
  }

  Result<Fd> claim(const std::string& ticket, int64_t timeout_ms) {
    auto done = std::make_shared<std::promise<std::shared_ptr<Result<Fd>>>>();
    auto future = done->get_future();
    auto claim = DescriptorClaim::start(*loop, path(), ticket, timeout_ms, [done](Result<Fd> result) {
      done->set_value(std::make_shared<Result<Fd>>(std::move(result)));
    });
    if (!claim) return claim.error();
    if (future.wait_for(kWait) != std::future_status::ready) return Error::of(ETIME, "test");
    return std::move(*future.get());
  }
};

TEST(tickets_are_redeemed) {
  Served served({32, 5000, 4, ::geteuid()});
  auto claimed = served.claim("ticket", 5000);
  CHECK(claimed && claimed->valid());
  CHECK(served.claim("none", 5000).error().code == ENOENT);
  CHECK(served.claim(std::string(33, 'x'), 5000).error().code == EMSGSIZE);
  CHECK(served.refused() == std::vector<int>{EMSGSIZE});
  CHECK(served.claim("", 5000).error().refused);
  for (int i = 0; i < 50; ++i) CHECK(served.claim("ticket", 5000));
}

TEST(silent_sides_time_out) {
  Served slow({32, 50, 4, ::geteuid()});
  CHECK(slow.claim("silence", 5000).error().code == ETIMEDOUT);
  // A client that never asks is dropped and its place is free again.
  std::vector<Fd> idle;
  for (int i = 0; i < 4; ++i) idle.push_back(slow.connect());
  // Until then there is no place for another (EAGAIN, or reset with its question unread); a slow machine makes
  // the server give up on us, too.
  Result<Fd> claimed = slow.claim("ticket", 5000);
  for (int i = 0; i < 1000 && !claimed; ++i) {
    int code = claimed.error().code;
    REQUIRE(code == EAGAIN || code == ECONNRESET || code == EPIPE || code == ETIMEDOUT);
    claimed = slow.claim("ticket", 5000);
  }
  CHECK(claimed);
  for (const Fd& fd : idle) CHECK(slow.answer_to(fd).error().code == ETIMEDOUT);
  std::vector<int> refused = slow.refused();
  CHECK(std::count(refused.begin(), refused.end(), ETIMEDOUT) >= 4);
}

TEST(others_are_refused_before_they_ask) {
  Served served({32, 60000, 1, ::geteuid() + 1});
  // Nobody has to send anything, and none of them takes the place of one that is served.
  for (int i = 0; i < 3; ++i) {
    Fd fd = served.connect();
    CHECK(served.answer_to(fd).error().code == EACCES);
  }
  CHECK(served.refused() == std::vector<int>({EACCES, EACCES, EACCES}));
}

TEST(connections_beyond_the_limit_are_refused) {
  Served served({32, 60000, 1, ::geteuid()}, 3);
  for (size_t i : {1, 2}) CHECK(served.answer_to(served.early[i]).error().code == EAGAIN);
  CHECK(served.refused() == std::vector<int>({EAGAIN, EAGAIN}));
  send_raw(served.early[0].get(), "ticket", {});
  CHECK(served.answer_to(served.early[0]));
  CHECK(served.claim("ticket", 5000));
}

TEST(a_server_that_never_answers) {
  Served served({32, 60000, 4, ::geteuid()});
  CHECK(served.claim("silence", 50).error().code == ETIMEDOUT);
}

TEST(listening_at_a_path_replaces_only_sockets) {
  TemporaryDirectory directory;
  const std::string path = directory.path() + "/helper.sock";
  CHECK(listen_unix(path, SOCK_STREAM, 0660, ::getegid(), 8));
  CHECK(listen_unix(path, SOCK_STREAM, 0660, ::getegid(), 8));
  struct stat st {};
  CHECK(::stat(path.c_str(), &st) == 0 && (st.st_mode & 07777) == 0660);
  ::unlink(path.c_str());
  write_file(path, "precious");
  auto refused = listen_unix(path, SOCK_STREAM, 0660, ::getegid(), 8);
  CHECK(!refused && refused.error().refused && read_file(path) == "precious");
  CHECK(!listen_unix(std::string(200, 'x'), SOCK_STREAM, 0660, ::getegid(), 8));
}
