#include "relay.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <condition_variable>
#include <future>
#include <mutex>
#include <string>
#include <thread>

#include "check.h"
#include "fixture.h"
#include "relay_server.h"

using namespace privsep;
using namespace privsep::test;

namespace {

constexpr uint64_t kPlenty = uint64_t{1} << 40;
constexpr int kTimeoutMs = 20000;

// The first does not block.
std::pair<Fd, Fd> pair() {
  int fds[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0) return {};
  ::fcntl(fds[0], F_SETFL, O_NONBLOCK);
  return {Fd(fds[0]), Fd(fds[1])};
}

bool waits(int fd, short events) {
  pollfd p{fd, events, 0};
  return ::poll(&p, 1, kTimeoutMs) == 1;
}

bool send_all(int fd, const std::string& text) {
  for (size_t at = 0; at < text.size();) {
    ssize_t n = ::send(fd, text.data() + at, text.size() - at, MSG_NOSIGNAL);
    if (n < 0) return false;
    at += static_cast<size_t>(n);
  }
  return true;
}

// Up to the end of the other side's bytes, or `size` of them.
std::string read_some(int fd, size_t size = SIZE_MAX) {
  std::string text;
  char buffer[65536];
  while (text.size() < size && waits(fd, POLLIN)) {
    ssize_t n = ::recv(fd, buffer, std::min(sizeof buffer, size - text.size()), 0);
    if (n <= 0) break;
    text.append(buffer, static_cast<size_t>(n));
  }
  return text;
}

bool at_end(int fd) {
  char byte;
  return waits(fd, POLLIN) && ::recv(fd, &byte, 1, 0) <= 0;
}

std::string pattern(size_t size) {
  std::string text(size, 0);
  for (size_t i = 0; i < size; ++i) text[i] = static_cast<char>(i * 31 + i / 4096);
  return text;
}

// What fits into a socket that nobody reads.
size_t fill(int fd) {
  const std::string block(4096, 'x');
  size_t sent = 0;
  for (pollfd p{fd, POLLOUT, 0}; ::poll(&p, 1, 200) == 1;) {
    ssize_t n = ::send(fd, block.data(), block.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0) break;
    sent += static_cast<size_t>(n);
  }
  return sent;
}

size_t open_descriptors() {
  size_t count = 0;
  for (int fd = 0; fd < 1024; ++fd) count += ::fcntl(fd, F_GETFD) >= 0 ? 1 : 0;
  return count;
}

// A relay between `guest` and `node`, the far ends of its two sockets.
struct Relayed {
  explicit Relayed(uint64_t max_received = kPlenty) {
    auto outer = pair();
    auto inner = pair();
    guest = std::move(outer.second);
    node = std::move(inner.second);
    loop = std::move(*EventLoop::start());
    relay = *Relay::create(*loop, std::move(outer.first), std::move(inner.first), max_received);
    relay->begin([this] { ended.set_value(); });
  }
  bool has_ended() {
    bool over = ended.get_future().wait_for(std::chrono::milliseconds(kTimeoutMs)) == std::future_status::ready;
    relay.reset();
    return over;
  }
  std::promise<void> ended;
  Fd guest;
  Fd node;
  std::unique_ptr<EventLoop> loop;
  std::shared_ptr<Relay> relay;
};

}  // namespace

TEST(relay_carries_both_ways_at_once) {
  Relayed relayed;
  const std::string there = pattern(8 << 20);
  const std::string back = pattern(6 << 20);
  std::string at_node;
  std::string at_guest;
  std::thread a([&] { send_all(relayed.guest.get(), there); });
  std::thread b([&] { send_all(relayed.node.get(), back); });
  std::thread c([&] { at_node = read_some(relayed.node.get(), there.size()); });
  at_guest = read_some(relayed.guest.get(), back.size());
  for (std::thread* each : {&a, &b, &c}) each->join();
  CHECK(at_node == there);
  CHECK(at_guest == back);
}

TEST(relay_reads_no_more_than_is_taken) {
  Relayed relayed;
  // Two sockets and a buffer full, then nothing more.
  const size_t there = fill(relayed.guest.get());
  const size_t back = fill(relayed.node.get());
  CHECK(there < (2 << 20) && back < (2 << 20));
  CHECK(read_some(relayed.node.get(), there).size() == there);
  CHECK(read_some(relayed.guest.get(), back).size() == back);
  CHECK(send_all(relayed.guest.get(), "more") && read_some(relayed.node.get(), 4) == "more");
}

TEST(relay_passes_the_end_of_one_side_on_and_goes_on_with_the_other) {
  Relayed relayed;
  const std::string text = pattern(1 << 20);
  std::thread sender([&] {
    send_all(relayed.guest.get(), text);
    ::shutdown(relayed.guest.get(), SHUT_WR);
  });
  CHECK(read_some(relayed.node.get()) == text);
  sender.join();
  CHECK(send_all(relayed.node.get(), "answer") && read_some(relayed.guest.get(), 6) == "answer");
  ::shutdown(relayed.node.get(), SHUT_WR);
  CHECK(at_end(relayed.guest.get()));
  CHECK(relayed.has_ended());
}

TEST(relay_ends_when_either_side_is_gone) {
  for (bool by_guest : {true, false}) {
    Relayed relayed;
    Fd& gone = by_guest ? relayed.guest : relayed.node;
    Fd& left = by_guest ? relayed.node : relayed.guest;
    CHECK(send_all(gone.get(), "last words"));
    gone.reset();
    CHECK(read_some(left.get()) == "last words");
    // Who is left has said nothing and closed nothing when the guest is gone; it may still.
    left.reset();
    CHECK(relayed.has_ended());
  }
}

TEST(relay_ends_when_the_program_is_gone_and_the_guest_says_nothing) {
  Relayed relayed;
  relayed.node.reset();
  CHECK(at_end(relayed.guest.get()));
  CHECK(relayed.has_ended());
}

TEST(relay_ends_when_the_program_is_gone_and_the_guest_takes_nothing) {
  Relayed relayed;
  fill(relayed.node.get());
  relayed.node.reset();
  // What was sent is still to be had, and then the end.
  CHECK(read_some(relayed.guest.get()).size() > Relay::kBuffer);
  CHECK(relayed.has_ended());
}

TEST(relay_ends_when_a_guest_sends_more_than_it_may) {
  Relayed relayed(100000);
  const std::string text = pattern(100000);
  std::thread sender([&] { send_all(relayed.guest.get(), text); });
  CHECK(read_some(relayed.node.get(), text.size()) == text);
  sender.join();
  CHECK(send_all(relayed.node.get(), pattern(4096)) && read_some(relayed.guest.get(), 4096) == pattern(4096));
  send_all(relayed.guest.get(), "x");
  CHECK(relayed.has_ended());
}

TEST(relay_stops_under_load_from_another_thread) {
  for (int round = 0; round < 50; ++round) {
    auto outer = pair();
    auto inner = pair();
    Fd guest = std::move(outer.second);
    Fd node = std::move(inner.second);
    auto loop = std::move(*EventLoop::start());
    std::promise<void> ended;
    auto relay = *Relay::create(*loop, std::move(outer.first), std::move(inner.first), kPlenty);
    relay->begin([] {});
    std::thread sender([&] { send_all(guest.get(), pattern(1 << 20)); });
    std::thread reader([&] { read_some(node.get()); });
    if (round % 2 == 0) ::shutdown(node.get(), SHUT_RDWR);
    for (int i = 0; i < round; ++i) std::this_thread::yield();
    relay->stop();
    sender.join();
    reader.join();
  }
}

TEST(peers_have_no_more_than_their_share) {
  PeerLimits limits({4, 2, 3, 60});
  CHECK(limits.admit(10, 0) && limits.admit(10, 0));
  CHECK(!limits.admit(10, 0));  // two at a time
  CHECK(limits.admit(11, 0) && limits.admit(12, 0));
  CHECK(!limits.admit(13, 0));  // four of all
  limits.ended(10);
  CHECK(limits.admit(10, 0));
  limits.ended(10);
  limits.ended(12);
  CHECK(!limits.admit(10, 999));  // three in a row, then one a second
  CHECK(limits.admit(14, 999));
  CHECK(limits.admit(10, 1000));
  limits.ended(99);  // unknown
  CHECK(!limits.admit(15, 1000));
}

TEST(peers_that_left_are_forgotten_when_there_are_many) {
  PeerLimits limits({4096, 2, 3, 60});
  for (uint32_t peer = 0; peer < 1024; ++peer) {
    CHECK(limits.admit(peer, 0));
    if (peer != 7) limits.ended(peer);
  }
  CHECK(!limits.admit(5000, 0));
  CHECK(limits.admit(5000, 1000));
  CHECK(limits.known() == 2);
}

namespace {

// A server on a unix socket, and what it handed out.
struct Served {
  explicit Served(const RelayServer::Limits& limits) {
    loop = std::move(*EventLoop::start());
    server = *RelayServer::start(*loop, listen_at(path(), 128), limits, [this](auto outcome) {
      std::lock_guard<std::mutex> lock(mutex);
      if (!outcome) {
        failure = outcome.error().code;
      } else {
        for (auto& arrival : *outcome) arrivals.push_back(std::move(arrival.end));
      }
      changed.notify_all();
    });
  }
  std::string path() const { return directory.path() + "/socket"; }
  Fd connect() const {
    Fd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path().copy(address.sun_path, sizeof address.sun_path - 1);
    if (::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) fd.reset();
    return fd;
  }
  // The next connection that was handed out.
  Fd next() {
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait_for(lock, std::chrono::milliseconds(kTimeoutMs), [this] { return !arrivals.empty(); });
    if (arrivals.empty()) return Fd();
    Fd end = std::move(arrivals.front());
    arrivals.erase(arrivals.begin());
    server->resume();
    return end;
  }
  TemporaryDirectory directory;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<Fd> arrivals;
  int failure = 0;
  std::unique_ptr<EventLoop> loop;
  std::shared_ptr<RelayServer> server;
};

}  // namespace

TEST(relay_server_hands_out_what_it_accepts) {
  Served served({{8, 8, 8, 60}, kPlenty});
  Fd guest = served.connect();
  Fd node = served.next();
  REQUIRE(node.valid());
  CHECK(send_all(guest.get(), "hello") && read_some(node.get(), 5) == "hello");
  CHECK(send_all(node.get(), "world") && read_some(guest.get(), 5) == "world");
  served.server->stop();
  CHECK(at_end(guest.get()) && at_end(node.get()));
  CHECK(!served.connect().valid());
}

TEST(relay_server_closes_what_is_beyond_its_limits_and_takes_others_later) {
  Served served({{2, 2, 100, 60}, kPlenty});
  Fd first = served.connect();
  Fd at_node = served.next();
  Fd second = served.connect();
  Fd other = served.next();
  REQUIRE(at_node.valid() && other.valid());
  // More than a batch of them.
  for (int i = 0; i < 100; ++i) {
    Fd refused = served.connect();
    CHECK(refused.valid() && at_end(refused.get()));
  }
  at_node.reset();
  CHECK(at_end(first.get()));
  // The relay's end was the first's, so there is room now; what comes is served.
  Fd node;
  Fd third;
  for (int tries = 0; tries < 1000 && !node.valid(); ++tries) {
    third = served.connect();
    pollfd p{third.get(), POLLIN, 0};
    if (::poll(&p, 1, 50) == 0) node = served.next();
  }
  CHECK(node.valid() && send_all(third.get(), "x") && read_some(node.get(), 1) == "x");
}

TEST(relay_server_keeps_nothing_of_connections_that_ended) {
  Served served({{64, 64, 4000, 4000}, kPlenty});
  const size_t before = open_descriptors();
  for (int i = 0; i < 200; ++i) {
    Fd guest = served.connect();
    Fd node = served.next();
    REQUIRE(node.valid());
    (i % 2 == 0 ? guest : node).reset();
    CHECK(at_end((i % 2 == 0 ? node : guest).get()));
  }
  for (int tries = 0; tries < 1000 && open_descriptors() != before; ++tries) ::usleep(1000);
  CHECK(open_descriptors() == before);
}

TEST(relay_server_says_why_it_can_accept_nothing) {
  auto loop = std::move(*EventLoop::start());
  Fd no_listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  std::promise<int> failed;
  auto server = RelayServer::start(*loop, std::move(no_listener), {{1, 1, 1, 1}, 1}, [&](auto outcome) {
    if (!outcome) failed.set_value(outcome.error().code);
  });
  REQUIRE(server);
  auto future = failed.get_future();
  REQUIRE(future.wait_for(std::chrono::milliseconds(kTimeoutMs)) == std::future_status::ready);
  CHECK(future.get() == EINVAL);
  (*server)->stop();
}
