#include "vsock.h"

#include <fcntl.h>
#include <linux/capability.h>
#include <linux/vm_sockets.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <condition_variable>
#include <cstring>
#include <mutex>
#include <optional>

#include "capabilities.h"
#include "check.h"
#include "fixture.h"
#include "relay_server.h"

using namespace privsep;
using namespace privsep::test;

namespace {

constexpr uint64_t bit(int capability) { return uint64_t{1} << capability; }

// Nothing, with the reason on standard error, where the machine has no such address.
std::optional<Fd> listener_of_the_host() {
  auto listener = listen_vsock();
  if (listener) return std::move(*listener);
  std::fprintf(stderr, "no vsock address of the host here: %s: %s\n", listener.error().operation.c_str(),
               ::strerror(listener.error().code));
  bool known = listener.error().code == EADDRNOTAVAIL || listener.error().code == EAFNOSUPPORT;
  CHECK(known && !listener.error().refused);
  return std::nullopt;
}

Fd connect_to_host(int* error) {
  Fd fd(::socket(AF_VSOCK, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_vm address{};
  address.svm_family = AF_VSOCK;
  address.svm_cid = VMADDR_CID_HOST;
  address.svm_port = 1;
  *error = ::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 ? 0 : errno;
  return fd;
}

// What comes next; nothing at the end.
std::string received(int fd) {
  pollfd p{fd, POLLIN, 0};
  char buffer[64];
  if (::poll(&p, 1, 20000) != 1) return "nothing came";
  ssize_t n = ::recv(fd, buffer, sizeof buffer, 0);
  return n < 0 ? "error" : std::string(buffer, static_cast<size_t>(n));
}

}  // namespace

TEST(vsock_device_is_the_right_one_or_none) {
  TemporaryDirectory directory;
  auto at = [&](const char* name) { return directory.path() + "/" + name; };
  auto missing = touch_vhost_vsock(at("missing"));
  CHECK(missing && !*missing);
  auto refused = [&](const char* name) {
    auto touched = touch_vhost_vsock(at(name));
    return !touched && touched.error().refused && touched.error().code == ENODEV;
  };
  write_file(at("file"), "");
  CHECK(refused("file"));
  CHECK(::mkfifo(at("fifo").c_str(), 0600) == 0 && refused("fifo"));
  CHECK(::mknod(at("null").c_str(), S_IFCHR | 0600, makedev(1, 3)) == 0 && refused("null"));
  CHECK(::symlink("/dev/null", at("link").c_str()) == 0);
  auto linked = touch_vhost_vsock(at("link"));
  CHECK(!linked && linked.error().code == ELOOP);
}

TEST(vsock_device_of_others_takes_its_capability) {
  TemporaryDirectory directory;
  std::string device = directory.path() + "/vhost-vsock";
  CHECK(::chmod(directory.path().c_str(), 0755) == 0);
  CHECK(::mknod(device.c_str(), S_IFCHR | 0600, makedev(10, 241)) == 0);
  auto touched_by_user = [&](uint64_t mask) {
    if (::prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0) != 0 || ::setresuid(64100, 64100, 64100) != 0) return -1;
    if (!set_capabilities({mask, mask, 0})) return -1;
    auto touched = touch_vhost_vsock(device);
    return touched ? 0 : touched.error().code;
  };
  CHECK(in_child([&] { return touched_by_user(0) == EACCES; }));
  // ENODEV: this kernel has no such driver.
  CHECK(in_child([&] {
    int outcome = touched_by_user(bit(CAP_DAC_READ_SEARCH));
    return outcome == 0 || outcome == ENODEV;
  }));
}

TEST(vsock_listener_is_one_at_a_time_and_wants_its_capability) {
  auto listener = listener_of_the_host();
  if (!listener) return;
  auto second = listen_vsock();
  CHECK(!second && second.error().code == EADDRINUSE);
  listener->reset();
  CHECK(in_child([] {
    return set_capabilities({bit(CAP_DAC_READ_SEARCH), bit(CAP_DAC_READ_SEARCH), 0}) &&
           listen_vsock().error().code == EACCES;
  }));
  CHECK(in_child([] {
    uint64_t mask = bit(CAP_DAC_READ_SEARCH) | bit(CAP_NET_BIND_SERVICE);
    return set_capabilities({mask, mask, 0}) && static_cast<bool>(listen_vsock());
  }));
  // Gone with the process that had it.
  CHECK(static_cast<bool>(listen_vsock()));
}

TEST(vsock_connections_are_relayed) {
  auto listener = listener_of_the_host();
  if (!listener) return;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<RelayServer::Arrival> arrivals;
  auto loop = std::move(*EventLoop::start());
  auto server = *RelayServer::start(*loop, std::move(*listener), {{8, 2, 8, 60}, 1 << 20}, [&](auto outcome) {
    std::lock_guard<std::mutex> lock(mutex);
    for (auto& arrival : *outcome) arrivals.push_back(std::move(arrival));
    changed.notify_all();
  });
  int error = 0;
  Fd guest = connect_to_host(&error);
  if (error != 0) {
    std::fprintf(stderr, "nobody reaches the host's address from here: %s\n", ::strerror(error));
    return server->stop();
  }
  std::unique_lock<std::mutex> lock(mutex);
  changed.wait_for(lock, std::chrono::seconds(20), [&] { return !arrivals.empty(); });
  REQUIRE(arrivals.size() == 1);
  Fd node = std::move(arrivals.front().end);
  lock.unlock();
  CHECK(arrivals.front().peer != 0);
  std::fprintf(stderr, "connected from CID %u\n", arrivals.front().peer);
  CHECK(::send(guest.get(), "hello", 5, 0) == 5 && received(node.get()) == "hello");
  CHECK(::send(node.get(), "world", 5, 0) == 5 && received(guest.get()) == "world");
  // Half-closed, then the other half.
  CHECK(::shutdown(guest.get(), SHUT_WR) == 0 && received(node.get()).empty());
  CHECK(::send(node.get(), "bye", 3, 0) == 3 && received(guest.get()) == "bye");
  node.reset();
  CHECK(received(guest.get()).empty());
  server->stop();
  connect_to_host(&error);
  CHECK(error == ECONNRESET || error == ECONNREFUSED);
}
