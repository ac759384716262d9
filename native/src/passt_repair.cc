#include "passt_repair.h"

#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <string_view>
#include <vector>

namespace privsep {

namespace {

constexpr const char* kDirectory = "qemu/run/passt";
constexpr std::string_view kSuffix = ".socket.repair";
constexpr size_t kMaxEntries = 1024;
constexpr int kLookAgainMs = 100;
// passt has at most 2^17 flows; each socket is switched on, off, and off once more after a failure.
constexpr int kMaxMessages = 3 * (1 << 17) / static_cast<int>(kMaxRepaired) + 1;

bool is_repair_value(int8_t value) {
  return value == TCP_REPAIR_ON || value == TCP_REPAIR_OFF || value == TCP_REPAIR_OFF_NO_WP;
}

std::optional<int> socket_option(int fd, int option) {
  int value = -1;
  socklen_t size = sizeof value;
  if (::getsockopt(fd, SOL_SOCKET, option, &value, &size) != 0) return std::nullopt;
  return value;
}

// The options first: they say no to what is no socket without asking the file system that it comes from, which
// may be the pod's own and never answer.
Status check_socket(int fd, const struct stat& netns) {
  auto domain = socket_option(fd, SO_DOMAIN);
  bool tcp = (domain == AF_INET || domain == AF_INET6) && socket_option(fd, SO_TYPE) == SOCK_STREAM &&
             socket_option(fd, SO_PROTOCOL) == IPPROTO_TCP;
  if (!tcp) return Error::refusal(EPROTOTYPE, "descriptor of passt is no TCP socket");
  Fd own(::ioctl(fd, SIOCGSKNS));
  if (!own.valid()) return Error::last("SIOCGSKNS socket of passt");
  auto id = stat_fd(own.get(), "network namespace of a socket");
  if (!id) return id.error();
  if (!same_inode(*id, netns)) return Error::refusal(EPERM, "socket of passt is of another network namespace");
  return ok();
}

// What was received over a connection. The last close of a TCP socket waits for as long as its owner has told it to
// (SO_LINGER), and that may be the pod's process, so it is told not to.
class Sockets {
 public:
  Sockets() = default;
  ~Sockets() { close(); }
  Sockets(const Sockets&) = delete;
  Sockets& operator=(const Sockets&) = delete;

  void add(int fd) { fds_.emplace_back(fd); }
  void close() {
    for (Fd& fd : fds_) {
      linger now{};
      socklen_t size = sizeof now;
      const linger off{};
      // With a time of 0 close() does not wait either, and passt wants it as it is.
      bool waits = ::getsockopt(fd.get(), SOL_SOCKET, SO_LINGER, &now, &size) == 0 && now.l_linger != 0;
      if (waits) (void)::setsockopt(fd.get(), SOL_SOCKET, SO_LINGER, &off, sizeof off);
      fd.reset();
    }
    fds_.clear();
  }

  bool empty() const { return fds_.empty(); }
  size_t size() const { return fds_.size(); }
  auto begin() const { return fds_.begin(); }
  auto end() const { return fds_.end(); }

 private:
  std::vector<Fd> fds_;
};

// `sockets` gets what came, also with an error. False at the end of the connection.
Result<bool> receive(int connection, int8_t& value, Sockets& sockets) {
  iovec data{&value, sizeof value};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxRepaired)];
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  ssize_t n = ::recvmsg(connection, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (n < 0 && errno == ECONNRESET) return false;
  if (n < 0) return Error::last("recvmsg from passt");
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof fd);
      sockets.add(fd);
    }
  }
  // There is room for all that fit into a message, so this process has no room for more descriptors.
  if ((message.msg_flags & MSG_CTRUNC) != 0) return Error::of(EMFILE, "recvmsg from passt");
  return n == 1;
}

Result<std::optional<std::string>> first_socket(int directory) {
  auto names = read_directory(directory, kMaxEntries, kDirectory);
  if (!names) return names.error();
  std::optional<std::string> first;
  for (const std::string& name : *names) {
    bool fits = name.size() > kSuffix.size() && std::string_view(name).substr(name.size() - kSuffix.size()) == kSuffix;
    if (fits && (!first || name < *first)) first = name;
  }
  return first;
}

Result<PasstConnection> connect_to_passt(int pods_dir, const PodUid& pod, const Deadline& deadline) {
  auto volume = open_volume(pods_dir, pod, PodVolume::kLibvirtRuntime);
  if (!volume) return volume.error();
  auto directory = walk(volume->get(), kDirectory, O_PATH | O_DIRECTORY, kOneMount, kDirectory);
  if (!directory) return directory.error();
  auto name = first_socket(directory->get());
  if (!name) return name.error();
  if (!*name) return Error::of(ENOENT, "look for *.socket.repair");
  auto socket = open_socket(directory->get(), **name);
  if (!socket) return socket.error();
  auto peer = connect_peer(socket->get(), deadline, **name, Descriptors::kWanted);
  if (!peer) return peer.error();
  PasstConnection connection(std::move(peer->connection));
  auto member = check_process(peer->pidfd.get(), pod, "listener of " + **name);
  if (!member) return member.error();
  return connection;
}

// False when the time is over. A connection of -1 is never readable.
Result<bool> readable(int connection, int cancel, int timeout_ms) {
  pollfd events[] = {{cancel, POLLIN, 0}, {connection, POLLIN, 0}};
  int n = ::poll(events, 2, timeout_ms);
  if (n < 0 && errno != EINTR) return Error::last("poll connection to passt");
  if (events[0].revents != 0) return Error::of(ECANCELED, "repair passt");
  return events[1].revents != 0;
}

// passt may not have made its socket, or not listen on it yet.
bool comes_later(const Error& error) {
  return !error.refused && (error.code == ENOENT || error.code == ECONNREFUSED || error.code == EAGAIN);
}

}  // namespace

PasstConnection::~PasstConnection() {
  // Nothing is added any more.
  if (!fd_.valid() || ::shutdown(fd_.get(), SHUT_RD) != 0) return;
  for (bool more = true; more;) {
    int8_t value = 0;
    Sockets sockets;
    auto received = receive(fd_.get(), value, sockets);
    more = received ? *received : received.error().code == EMFILE;
  }
}

Result<std::optional<size_t>> repair_message(int connection, const struct stat& netns) {
  int8_t value = 0;
  Sockets sockets;
  auto more = receive(connection, value, sockets);
  if (!more) return more.error();
  if (!*more) return std::optional<size_t>();
  if (!is_repair_value(value)) return Error::refusal(EBADMSG, "value for TCP_REPAIR");
  if (sockets.empty()) return Error::refusal(EBADMSG, "message of passt without a socket");
  for (const Fd& socket : sockets) {
    auto valid = check_socket(socket.get(), netns);
    if (!valid) return valid.error();
  }
  int setting = value;
  for (const Fd& socket : sockets) {
    if (::setsockopt(socket.get(), IPPROTO_TCP, TCP_REPAIR, &setting, sizeof setting) == 0) continue;
    Error error = Error::last("setsockopt TCP_REPAIR");
    error.unchanged = &socket == &*sockets.begin();
    return error;
  }
  size_t count = sockets.size();
  // Before the answer, which would tell the pod's process when to change them.
  sockets.close();
  if (::send(connection, &value, sizeof value, MSG_DONTWAIT | MSG_NOSIGNAL) != 1 && errno != EPIPE) {
    Error error = Error::last("send to passt");
    error.unchanged = false;
    return error;
  }
  return std::optional<size_t>(count);
}

Result<uint64_t> repair_passt(int pods_dir, const PodUid& pod, const Launcher& launcher, RepairSide side, int cancel,
                              const Deadline& deadline) {
  auto netns = stat_fd(launcher.netns.get(), "network namespace");
  if (!netns) return netns.error();
  PasstConnection connection;
  while (!connection.valid()) {
    auto connected = connect_to_passt(pods_dir, pod, deadline);
    if (connected) {
      connection = std::move(*connected);
    } else if (side == RepairSide::kSource || !comes_later(connected.error()) || deadline.passed()) {
      return connected.error();
    } else {
      auto alive = check_alive(launcher.pidfd.get(), "launcher");
      if (!alive) return alive.error();
      auto waited = readable(-1, cancel, std::min(kLookAgainMs, deadline.remaining_ms()));
      if (!waited) return waited.error();
    }
  }
  uint64_t repaired = 0;
  auto fail = [&repaired](Error error) {
    error.unchanged = error.unchanged && repaired == 0;
    return error;
  };
  for (int messages = 0; messages < kMaxMessages;) {
    if (deadline.passed()) return fail(Error::of(ETIMEDOUT, "repair passt"));
    auto ready = readable(connection.get(), cancel, deadline.remaining_ms());
    if (!ready) return fail(ready.error());
    if (!*ready) continue;
    auto sockets = repair_message(connection.get(), *netns);
    if (!sockets) return fail(sockets.error());
    if (!*sockets) return repaired;
    repaired += **sockets;
    ++messages;
  }
  return fail(Error::refusal(E2BIG, "number of messages of passt"));
}

}  // namespace privsep
