#include "pod_sockets.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cstring>

#include "unix_sockets.h"
#include "walk.h"

namespace privsep {

namespace {

constexpr int kBacklog = 128;
constexpr mode_t kSocketMode = 0755;
constexpr mode_t kDirectoryMode = 0755;
constexpr mode_t kMarkerMode = 0644;
constexpr const char* kAttachmentSocket = "hp.sock";

bool is_missing(const Error& error) { return error.code == ENOENT || error.code == ENOTDIR; }

// Something that is no directory in the place of one is a refusal as a link is.
Result<Fd> walk_directory(int volume, const VolumeEntry& entry) {
  auto directory = walk(volume, entry.directory, O_PATH | O_DIRECTORY, kOneMount, entry.directory);
  if (directory || directory.error().code != ENOTDIR) return directory;
  return Error::refusal(ENOTDIR, "type of " + entry.directory);
}

Result<Fd> open_directory(int pods_dir, const PodUid& pod, const VolumeEntry& entry) {
  auto volume = open_volume(pods_dir, pod, entry.volume);
  if (!volume) return volume.error();
  return walk_directory(volume->get(), entry);
}

// `made` becomes true with the directory.
Result<Fd> open_or_make_directory(int pods_dir, const PodUid& pod, const VolumeEntry& entry, uid_t uid, gid_t gid,
                                  bool& made) {
  auto volume = open_volume(pods_dir, pod, entry.volume);
  if (!volume) return volume.error();
  auto directory = walk_directory(volume->get(), entry);
  // A name only: mkdirat would follow a link above the last component.
  if (directory || directory.error().code != ENOENT || !is_entry_name(entry.directory)) return directory;
  if (::mkdirat(volume->get(), entry.directory.c_str(), kDirectoryMode) != 0) {
    return Error::last("mkdirat " + entry.directory);
  }
  made = true;
  auto fail = [](Error error) {
    error.unchanged = false;
    return error;
  };
  directory = walk_directory(volume->get(), entry);
  if (!directory) return fail(directory.error());
  // As with a socket: what the helper's own user owns is what it has just made.
  auto st = stat_fd(directory->get(), entry.directory);
  if (!st) return fail(st.error());
  if (st->st_uid != ::geteuid()) return fail(Error::refusal(EPERM, "identity of " + entry.directory));
  if (::fchownat(directory->get(), "", uid, gid, AT_EMPTY_PATH) != 0) {
    return fail(Error::last("fchownat " + entry.directory));
  }
  return directory;
}

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

Result<Fd> open_entry(int pods_dir, const PodUid& pod, const VolumeEntry& entry) {
  auto directory = open_directory(pods_dir, pod, entry);
  if (!directory) return directory.error();
  return open_socket(directory->get(), entry.name);
}

Result<ContainerDiskState> container_disk_state(int volume, const PodUid& pod, std::optional<int> index,
                                                const Deadline& deadline) {
  auto name = image_socket_name(index);
  if (!name) return name.error();
  auto socket = open_socket(volume, *name);
  if (!socket) {
    if (is_missing(socket.error())) return ContainerDiskState::kAbsent;
    return socket.error();
  }
  auto peer = connect_peer(socket->get(), deadline, *name);
  if (!peer) {
    int code = peer.error().code;
    if (code == ECONNREFUSED || code == EAGAIN || code == ESRCH) return ContainerDiskState::kNotListening;
    return peer.error();
  }
  auto member = check_process(peer->pidfd.get(), pod, *name);
  if (!member) {
    if (member.error().code == EPERM || member.error().code == ESRCH) return ContainerDiskState::kNotListening;
    return member.error();
  }
  return ContainerDiskState::kReady;
}

Result<Fd> non_blocking(Fd connection, const std::string& name) {
  timeval none{0, 0};
  int flags = ::fcntl(connection.get(), F_GETFL);
  if (flags < 0 || ::fcntl(connection.get(), F_SETFL, flags | O_NONBLOCK) != 0 ||
      ::setsockopt(connection.get(), SOL_SOCKET, SO_SNDTIMEO, &none, sizeof none) != 0) {
    return Error::last("make connection to " + name + " non-blocking");
  }
  return connection;
}

}  // namespace

Result<Fd> connect_launcher(int pods_dir, const PodUid& pod, const VolumeEntry& entry, const Launcher& launcher,
                            const Deadline& deadline) {
  auto socket = open_entry(pods_dir, pod, entry);
  if (!socket) return socket.error();
  auto peer = connect_peer(socket->get(), deadline, entry.name);
  if (!peer) return peer.error();
  auto same = check_same_process(*peer, launcher, entry.name);
  if (!same) return same.error();
  auto member = check_process(peer->pidfd.get(), pod, "listener of " + entry.name);
  if (!member) return member.error();
  return non_blocking(std::move(peer->connection), entry.name);
}

Result<Fd> connect_socket(int pods_dir, const PodUid& pod, const VolumeEntry& entry, const Deadline& deadline) {
  auto socket = open_entry(pods_dir, pod, entry);
  if (!socket) return socket.error();
  auto peer = connect_peer(socket->get(), deadline, entry.name);
  if (peer) {
    auto member = check_process(peer->pidfd.get(), pod, "listener of " + entry.name);
    if (!member) return member.error();
    return non_blocking(std::move(peer->connection), entry.name);
  }
  // virtqemud listens for QEMU, hands the socket over and may be started anew. Whoever listened at an inode of
  // the pod's volume was of the pod.
  if (peer.error().code != ESRCH) return peer.error();
  auto connection = connect_socket_inode(socket->get(), deadline, entry.name);
  if (!connection) return connection.error();
  return non_blocking(std::move(*connection), entry.name);
}

Result<Peer> attachment_process(int pods_dir, const PodUid& pod, const Deadline& deadline) {
  const VolumeEntry entry{PodVolume::kHotplugDisks, ".", kAttachmentSocket, kAttachmentSocket};
  auto socket = open_entry(pods_dir, pod, entry);
  if (!socket) return socket.error();
  auto peer = connect_peer(socket->get(), deadline, entry.name);
  if (!peer) return peer.error();
  auto member = check_process(peer->pidfd.get(), pod, "listener of " + entry.name);
  if (!member) return member.error();
  // Only now: a pod whose process listens has all its volumes.
  auto other = check_no_launcher_pod(pods_dir, pod);
  if (!other) return other.error();
  return peer;
}

bool is_not_listening(const Error& error) {
  return error.code == ENOENT || error.code == ECONNREFUSED || error.code == EAGAIN || error.code == ESRCH;
}

Result<Fd> connect_attachment(int pods_dir, const PodUid& pod, const Deadline& deadline) {
  auto peer = attachment_process(pods_dir, pod, deadline);
  if (!peer) return peer.error();
  return non_blocking(std::move(peer->connection), kAttachmentSocket);
}

Result<ListeningSocket> listen_socket(int pods_dir, const PodUid& pod, const VolumeEntry& entry, uid_t uid,
                                      gid_t gid) {
  const std::string& name = entry.name;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  Fd listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener.valid()) return Error::last("socket");
  auto closed = refuse_descriptors(listener.get());
  if (!closed) return closed.error();
  // The entry inherits the mode of the socket.
  if (::fchmod(listener.get(), kSocketMode) != 0) return Error::last("fchmod socket");

  bool changed = false;
  auto directory = open_or_make_directory(pods_dir, pod, entry, uid, gid, changed);
  if (!directory) return directory.error();
  auto fail = [&](Error error) {
    error.unchanged = !changed;
    return error;
  };
  // bind() never follows a link in the last place, and the directory is pinned.
  std::string path = fd_path(directory->get()) + "/" + name;
  if (path.size() >= sizeof address.sun_path) return fail(Error::refusal(ENAMETOOLONG, "bind " + name));
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  auto old = stat_entry(directory->get(), name, name);
  if (!old) return fail(old.error());
  if (*old) {
    if (!S_ISSOCK((*old)->st_mode)) {
      return fail(Error::refusal(EEXIST, "entry in the place of " + name + " is not a socket"));
    }
    if (::unlinkat(directory->get(), name.c_str(), 0) != 0) return fail(Error::last("unlinkat " + name));
    changed = true;
  }
  if (::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
    return fail(Error::last("bind " + name));
  }
  struct stat st {};
  auto inode = own_socket(directory->get(), name, &st);
  if (!inode) {
    changed = true;
    return fail(inode.error());
  }
  if (::fchownat(inode->get(), "", uid, gid, AT_EMPTY_PATH) != 0 || ::listen(listener.get(), kBacklog) != 0) {
    Error error = Error::last("fchownat or listen " + name);
    changed = ::unlinkat(directory->get(), name.c_str(), 0) != 0 || changed;
    return fail(error);
  }
  return ListeningSocket{std::move(listener), InodeId{st.st_dev, st.st_ino}};
}

Result<bool> claim_socket(int pods_dir, const PodUid& pod, const VolumeEntry& entry, uid_t uid, gid_t gid) {
  auto socket = open_entry(pods_dir, pod, entry);
  if (!socket) return socket.error();
  auto st = stat_fd(socket->get(), entry.name);
  if (!st) return st.error();
  if (st->st_uid == uid && st->st_gid == gid) return false;
  if (::fchownat(socket->get(), "", uid, gid, AT_EMPTY_PATH) != 0) return Error::last("fchownat " + entry.name);
  return true;
}

Result<bool> unlink_socket(int pods_dir, const PodUid& pod, const VolumeEntry& entry, const InodeId& inode) {
  auto directory = open_directory(pods_dir, pod, entry);
  if (!directory) {
    if (is_missing(directory.error()) && !directory.error().refused) return false;
    return directory.error();
  }
  auto found = stat_entry(directory->get(), entry.name, entry.name);
  if (!found) return found.error();
  if (!*found || !S_ISSOCK((*found)->st_mode) || (*found)->st_dev != inode.dev || (*found)->st_ino != inode.ino) {
    return false;
  }
  if (::unlinkat(directory->get(), entry.name.c_str(), 0) != 0) {
    if (errno == ENOENT) return false;
    return Error::last("unlinkat " + entry.name);
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

Result<std::vector<ContainerDiskState>> container_disk_states(int pods_dir, const PodUid& pod,
                                                              const std::vector<std::optional<int>>& indexes,
                                                              const Deadline& deadline) {
  std::vector<ContainerDiskState> states;
  auto volume = open_volume(pods_dir, pod, PodVolume::kContainerDisks);
  if (!volume) {
    if (!is_missing(volume.error())) return volume.error();
    states.push_back(ContainerDiskState::kAbsent);
    return states;
  }
  for (std::optional<int> index : indexes) {
    auto state = container_disk_state(volume->get(), pod, index, deadline);
    if (!state) {
      state.error().item = static_cast<int>(states.size());
      return state.error();
    }
    states.push_back(*state);
    if (*state != ContainerDiskState::kReady) break;
  }
  return states;
}

}  // namespace privsep
