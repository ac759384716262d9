#include "pod_sockets.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cstring>

#include "walk.h"

namespace privsep {

namespace {

constexpr int kBacklog = 128;
constexpr mode_t kSocketMode = 0755;
constexpr mode_t kMarkerMode = 0644;

bool is_missing(const Error& error) { return error.code == ENOENT || error.code == ENOTDIR; }

// The inode that bind() made, as a descriptor. Only the helper can have made a socket that its own user
// owns, so a pod that swaps the entry meanwhile is noticed.
Result<Fd> own_socket(int volume_dir, const std::string& name, struct stat* st) {
  auto inode = open_socket(volume_dir, name);
  if (!inode) return inode.error();
  auto found = stat_fd(inode->get(), name);
  if (!found) return found.error();
  if (found->st_uid != ::geteuid() || found->st_nlink != 1) return Error::refusal(EPERM, "identity of " + name);
  *st = *found;
  return std::move(*inode);
}

}  // namespace

Result<Fd> connect_socket(int pods_dir, const PodUid& pod, PodVolume volume, const std::string& name,
                          const Launcher& launcher, const Deadline& deadline) {
  auto valid = check_file_name(name);
  if (!valid) return valid.error();
  auto directory = open_volume(pods_dir, pod, volume);
  if (!directory) return directory.error();
  auto socket = open_socket(directory->get(), name);
  if (!socket) return socket.error();
  auto peer = connect_peer(socket->get(), deadline, name);
  if (!peer) return peer.error();
  auto same = check_same_process(*peer, launcher, name);
  if (!same) return same.error();
  auto member = check_process(launcher.pidfd.get(), pod, "launcher");
  if (!member) return member.error();
  timeval none{0, 0};
  int flags = ::fcntl(peer->connection.get(), F_GETFL);
  if (flags < 0 || ::fcntl(peer->connection.get(), F_SETFL, flags | O_NONBLOCK) != 0 ||
      ::setsockopt(peer->connection.get(), SOL_SOCKET, SO_SNDTIMEO, &none, sizeof none) != 0) {
    return Error::last("make connection to " + name + " non-blocking");
  }
  return std::move(peer->connection);
}

Result<ListeningSocket> listen_socket(int pods_dir, const PodUid& pod, PodVolume volume, const std::string& name,
                                      uid_t uid, gid_t gid) {
  auto valid = check_file_name(name);
  if (!valid) return valid.error();
  auto directory = open_volume(pods_dir, pod, volume);
  if (!directory) return directory.error();

  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  // bind() never follows a link in the last place, and the directory is pinned.
  std::string path = fd_path(directory->get()) + "/" + name;
  if (path.size() >= sizeof address.sun_path) return Error::refusal(ENAMETOOLONG, "bind " + name);
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  Fd listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener.valid()) return Error::last("socket");
  // The entry inherits the mode of the socket.
  if (::fchmod(listener.get(), kSocketMode) != 0) return Error::last("fchmod socket");

  auto old = stat_entry(directory->get(), name, name);
  if (!old) return old.error();
  bool removed = false;
  if (*old) {
    if (!S_ISSOCK((*old)->st_mode)) return Error::refusal(EEXIST, "entry in the place of " + name + " is not a socket");
    if (::unlinkat(directory->get(), name.c_str(), 0) != 0) return Error::last("unlinkat " + name);
    removed = true;
  }
  if (::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
    Error error = Error::last("bind " + name);
    error.unchanged = !removed;
    return error;
  }
  struct stat st {};
  auto inode = own_socket(directory->get(), name, &st);
  if (!inode) {
    Error error = inode.error();
    error.unchanged = false;
    return error;
  }
  if (::fchownat(inode->get(), "", uid, gid, AT_EMPTY_PATH) != 0 || ::listen(listener.get(), kBacklog) != 0) {
    Error error = Error::last("fchownat or listen " + name);
    error.unchanged = ::unlinkat(directory->get(), name.c_str(), 0) == 0 && !removed;
    return error;
  }
  return ListeningSocket{std::move(listener), InodeId{st.st_dev, st.st_ino}};
}

Result<bool> unlink_socket(int pods_dir, const PodUid& pod, PodVolume volume, const std::string& name,
                           const InodeId& inode) {
  auto valid = check_file_name(name);
  if (!valid) return valid.error();
  auto directory = open_volume(pods_dir, pod, volume);
  if (!directory) {
    if (is_missing(directory.error())) return false;
    return directory.error();
  }
  auto entry = stat_entry(directory->get(), name, name);
  if (!entry) return entry.error();
  if (!*entry || !S_ISSOCK((*entry)->st_mode) || (*entry)->st_dev != inode.dev || (*entry)->st_ino != inode.ino) {
    return false;
  }
  if (::unlinkat(directory->get(), name.c_str(), 0) != 0) {
    if (errno == ENOENT) return false;
    return Error::last("unlinkat " + name);
  }
  return true;
}

Result<bool> mark_unresponsive(int pods_dir, const PodUid& pod, const Deadline& deadline) {
  auto directory = open_volume(pods_dir, pod, PodVolume::kSockets);
  if (!directory) return directory.error();
  auto marker = stat_entry(directory->get(), kUnresponsiveMarker, kUnresponsiveMarker);
  if (!marker) return marker.error();
  if (*marker) return false;
  auto socket = open_socket(directory->get(), kLauncherSocket);
  if (!socket && !is_missing(socket.error())) return socket.error();
  if (socket) {
    auto connection = connect_socket_inode(socket->get(), deadline, kLauncherSocket);
    if (connection) return Error::refusal(EBUSY, "launcher answers on launcher-sock");
    if (connection.error().code != ECONNREFUSED) {
      Error error = connection.error();
      error.refused = true;
      return error;
    }
  }
  auto made = walk(directory->get(), kUnresponsiveMarker, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, kNoLinks,
                   kUnresponsiveMarker, kMarkerMode);
  if (!made) {
    if (made.error().code == EEXIST) return false;
    return made.error();
  }
  return true;
}

Result<ContainerDiskState> container_disk_state(int pods_dir, const PodUid& pod, int index,
                                                const Deadline& deadline) {
  if (index < 0 || index > kMaxDiskIndex) return Error::refusal(EINVAL, "volume index");
  std::string name = disk_name(index, ".sock");
  auto directory = open_volume(pods_dir, pod, PodVolume::kContainerDisks);
  if (!directory) {
    if (is_missing(directory.error())) return ContainerDiskState::kAbsent;
    return directory.error();
  }
  auto socket = open_socket(directory->get(), name);
  if (!socket) {
    if (is_missing(socket.error())) return ContainerDiskState::kAbsent;
    return socket.error();
  }
  auto peer = connect_peer(socket->get(), deadline, name);
  if (!peer) {
    int code = peer.error().code;
    if (code == ECONNREFUSED || code == EAGAIN || code == ESRCH) return ContainerDiskState::kNotListening;
    return peer.error();
  }
  auto member = check_process(peer->pidfd.get(), pod, name);
  if (!member) {
    if (member.error().code == EPERM || member.error().code == ESRCH) return ContainerDiskState::kNotListening;
    return member.error();
  }
  return ContainerDiskState::kReady;
}

}  // namespace privsep
