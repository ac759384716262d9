#include "launcher.h"

#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/vfs.h>

#include <algorithm>
#include <cstring>

#include "cgroup.h"
#include "kernel.h"
#include "proc_file.h"
#include "unix_sockets.h"

namespace privsep {

namespace {

// How long a connect may wait for room in the listener's backlog. A listener that hangs must not hold a
// privileged thread for the whole deadline.
constexpr int kBacklogWaitMs = 500;
constexpr size_t kMaxProcFile = 64 * 1024;

// Before Linux 6.13: "Pid:" of fdinfo, -1 for a process that was reaped.
Result<pid_t> pid_from_fdinfo(int pidfd) {
  auto text = read_proc_file("/proc/self/fdinfo/" + std::to_string(pidfd), kMaxProcFile);
  if (!text) return text.error();
  size_t at = text->find("\nPid:");
  if (at == std::string::npos) return Error::of(EBADF, "pid of pidfd");
  long pid = ::strtol(text->c_str() + at + 5, nullptr, 10);
  if (pid <= 0) return Error::refusal(ESRCH, "pid of pidfd");
  return static_cast<pid_t>(pid);
}

Result<ucred> peer_credentials(int connection, const std::string& what) {
  ucred credentials{};
  socklen_t size = sizeof credentials;
  if (::getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) {
    return Error::last("getsockopt SO_PEERCRED " + what);
  }
  if (credentials.pid <= 0) return Error::refusal(ESRCH, "listener of " + what + " is in another pid namespace");
  return credentials;
}

// Before Linux 6.5: the number may have been reused between listen() and pidfd_open(), so the listener is
// asked for once more through a new connection while the pidfd holds the number.
Result<Fd> pidfd_by_number(int socket_inode, pid_t pid, const Deadline& deadline, const std::string& what) {
  Fd pidfd(kernel::pidfd_open(pid));
  if (!pidfd.valid()) return Error::last("pidfd_open listener of " + what);
  auto again = connect_socket_inode(socket_inode, deadline, what);
  if (!again) return again.error();
  auto credentials = peer_credentials(again->get(), what);
  if (!credentials) return credentials.error();
  if (credentials->pid != pid) return Error::refusal(ESRCH, "listener of " + what + " changed");
  return pidfd;
}

Result<Fd> namespace_of(int pidfd, unsigned long request, const char* name) {
  int fd = ::ioctl(pidfd, request, 0);
  if (fd >= 0) {
    ::fcntl(fd, F_SETFD, FD_CLOEXEC);
    return Fd(fd);
  }
  if (errno != ENOTTY && errno != EINVAL && errno != EOPNOTSUPP) {
    return Error::last(std::string("PIDFD_GET_NAMESPACE ") + name);
  }
  auto pid = pid_of(pidfd);
  if (!pid) return pid.error();
  std::string path = "/proc/" + std::to_string(*pid) + "/ns/" + name;
  Fd ns(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!ns.valid()) return Error::last("open " + path);
  // Still alive: so the number meant this process when the path was resolved.
  auto alive = check_alive(pidfd, path);
  if (!alive) return alive.error();
  return ns;
}

}  // namespace

Result<Fd> open_socket(int directory, const std::string& name) {
  // What is mounted over a socket is not the pod's.
  auto inode = walk(directory, name, O_PATH, kOneMount, name);
  if (!inode) return inode.error();
  auto st = stat_fd(inode->get(), name);
  if (!st) return st.error();
  if (!S_ISSOCK(st->st_mode)) return Error::refusal(ENOTSOCK, "type of " + name);
  return std::move(*inode);
}

Result<Fd> connect_socket_inode(int socket_inode, const Deadline& deadline, const std::string& what,
                                Descriptors descriptors) {
  Fd connection(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!connection.valid()) return Error::last("socket");
  auto closed = descriptors == Descriptors::kWanted ? ok() : refuse_descriptors(connection.get());
  if (!closed) return closed.error();
  int wait_ms = std::min(deadline.remaining_ms(), kBacklogWaitMs);
  if (wait_ms == 0) return Error::of(ETIMEDOUT, "connect " + what);
  timeval wait{wait_ms / 1000, (wait_ms % 1000) * 1000};
  if (::setsockopt(connection.get(), SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof wait) != 0) {
    return Error::last("setsockopt SO_SNDTIMEO");
  }
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::string path = fd_path(socket_inode);
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  if (::connect(connection.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
    return Error::last("connect " + what);
  }
  return connection;
}

Result<Peer> connect_peer(int socket_inode, const Deadline& deadline, const std::string& what,
                          Descriptors descriptors) {
  auto connection = connect_socket_inode(socket_inode, deadline, what, descriptors);
  if (!connection) return connection.error();
  auto credentials = peer_credentials(connection->get(), what);
  if (!credentials) return credentials.error();
  Peer peer;
  peer.connection = std::move(*connection);
  peer.pid = credentials->pid;
  peer.uid = credentials->uid;
  peer.gid = credentials->gid;
  int pidfd = -1;
  socklen_t size = sizeof pidfd;
  if (::getsockopt(peer.connection.get(), SOL_SOCKET, kernel::kSoPeerPidfd, &pidfd, &size) == 0) {
    peer.pidfd.reset(pidfd);
  } else if (errno == ENOPROTOOPT) {
    auto opened = pidfd_by_number(socket_inode, peer.pid, deadline, what);
    if (!opened) return opened.error();
    peer.pidfd = std::move(*opened);
  } else {
    Error error = Error::last("getsockopt SO_PEERPIDFD " + what);
    if (error.code != ESRCH && error.code != EINVAL && error.code != ENODATA) return error;
    return Error::refusal(ESRCH, "listener of " + what + " has exited");
  }
  // The kernel hands out pidfds of processes that are gone, too.
  auto alive = check_alive(peer.pidfd.get(), "listener of " + what);
  if (!alive) return alive.error();
  return peer;
}

Status check_alive(int pidfd, const std::string& what) {
  pollfd p{pidfd, POLLIN, 0};
  int n = ::poll(&p, 1, 0);
  if (n < 0) return Error::last("poll pidfd of " + what);
  if (n > 0) return Error::refusal((p.revents & POLLNVAL) != 0 ? EBADF : ESRCH, what + " has exited");
  return ok();
}

Status check_process(int pidfd, const PodUid& pod, const std::string& what) {
  auto pid = pid_of(pidfd);
  if (!pid) return pid.error();
  auto cgroup = read_proc_file("/proc/" + std::to_string(*pid) + "/cgroup", kMaxProcFile);
  // What was read is this process's only if it still lives; a vanished file says the same.
  auto alive = check_alive(pidfd, what);
  if (!alive) return alive.error();
  if (!cgroup) return cgroup.error();
  if (!cgroup_is_in_pod(*cgroup, pod.text())) return Error::refusal(EPERM, "cgroup of " + what);
  return ok();
}

Result<pid_t> pid_of(int pidfd) {
  kernel::PidfdInfo info{};
  info.mask = kernel::kPidfdInfoPid;
  if (::ioctl(pidfd, kernel::kPidfdGetInfo, &info) == 0) {
    // For a reaped process the call succeeds without the pid.
    if ((info.mask & kernel::kPidfdInfoPid) == 0 || info.tgid == 0) {
      return Error::refusal(ESRCH, "process of pidfd has exited");
    }
    return static_cast<pid_t>(info.tgid);
  }
  if (errno == ESRCH) return Error::refusal(ESRCH, "process of pidfd has exited");
  return pid_from_fdinfo(pidfd);
}

Result<uint64_t> inode_of_pidfd(int pidfd) {
  struct statfs fs {};
  if (::fstatfs(pidfd, &fs) != 0) return Error::last("fstatfs pidfd");
  if (static_cast<long>(fs.f_type) != kernel::kPidfsMagic) return uint64_t{0};
  auto st = stat_fd(pidfd, "pidfd");
  if (!st) return st.error();
  return static_cast<uint64_t>(st->st_ino);
}

Result<Fd> mount_namespace_of(int pidfd) { return namespace_of(pidfd, kernel::kPidfdGetMntNamespace, "mnt"); }
Result<Fd> network_namespace_of(int pidfd) { return namespace_of(pidfd, kernel::kPidfdGetNetNamespace, "net"); }

Result<Launcher> pin_launcher(int pods_dir, const PodUid& pod, const Deadline& deadline) {
  auto volume = open_volume(pods_dir, pod, PodVolume::kSockets);
  if (!volume) return volume.error();
  auto socket = open_socket(volume->get(), kLauncherSocket);
  if (!socket) return socket.error();
  auto peer = connect_peer(socket->get(), deadline, kLauncherSocket);
  if (!peer) return peer.error();
  auto member = check_process(peer->pidfd.get(), pod, "launcher");
  if (!member) return member.error();
  auto mntns = mount_namespace_of(peer->pidfd.get());
  if (!mntns) return mntns.error();
  auto netns = network_namespace_of(peer->pidfd.get());
  if (!netns) return netns.error();
  Launcher launcher;
  launcher.pidfd = std::move(peer->pidfd);
  launcher.mntns = std::move(*mntns);
  launcher.netns = std::move(*netns);
  launcher.pid = peer->pid;
  launcher.uid = peer->uid;
  launcher.gid = peer->gid;
  return launcher;
}

Status check_same_process(const Peer& peer, const Launcher& launcher, const std::string& what) {
  auto inode = inode_of_pidfd(peer.pidfd.get());
  if (!inode) return inode.error();
  auto pinned = inode_of_pidfd(launcher.pidfd.get());
  if (!pinned) return pinned.error();
  bool same = *inode != 0 && *inode == *pinned;
  if (*inode == 0) {
    // Equal numbers of two processes that are both alive mean one process.
    auto a = pid_of(peer.pidfd.get());
    auto b = pid_of(launcher.pidfd.get());
    same = a && b && *a == *b;
  }
  auto alive = check_alive(launcher.pidfd.get(), "launcher");
  if (!alive) return alive.error();
  if (!same) return Error::refusal(EPERM, "listener of " + what + " is not the launcher");
  return ok();
}

}  // namespace privsep
