// Pinning the process that listens on a pod's socket.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>

#include <cstdint>
#include <string>

#include "deadline.h"
#include "fd.h"
#include "pod.h"
#include "result.h"
#include "walk.h"

namespace privsep {

// A process of a launcher pod and its namespaces, taken together once.
struct Launcher {
  Fd pidfd;
  Fd mntns;
  Fd netns;
  pid_t pid = 0;
  uid_t uid = 0;
  gid_t gid = 0;
};

// A connection and the process that had called listen() at its other end.
struct Peer {
  Fd connection;  // blocking
  Fd pidfd;
  pid_t pid = 0;
  uid_t uid = 0;
  gid_t gid = 0;
};

// A socket inode in a directory (O_PATH). Refuses links, mounts and every other type.
Result<Fd> open_socket(int directory, const std::string& name);

// Whether the other end may send descriptors over a connection (see refuse_descriptors).
enum class Descriptors { kRefused, kWanted };

// Connects to a socket inode. ECONNREFUSED: nobody listens. EAGAIN: somebody does but does not accept.
Result<Fd> connect_socket_inode(int socket_inode, const Deadline& deadline, const std::string& what,
                                Descriptors descriptors = Descriptors::kRefused);

// Connects and pins the listener, which must be alive (else ESRCH, refused).
Result<Peer> connect_peer(int socket_inode, const Deadline& deadline, const std::string& what,
                          Descriptors descriptors = Descriptors::kRefused);

// ESRCH (refused) when the process of the pidfd has exited.
Status check_alive(int pidfd, const std::string& what);

// Alive and in the pod's cgroup. Refuses otherwise.
Status check_process(int pidfd, const PodUid& pod, const std::string& what);

// Number of the process in the caller's pid namespace.
Result<pid_t> pid_of(int pidfd);

// Inode on pidfs, 0 where pidfds are anonymous.
Result<uint64_t> inode_of_pidfd(int pidfd);

Result<Fd> mount_namespace_of(int pidfd);
Result<Fd> network_namespace_of(int pidfd);

Result<Launcher> pin_launcher(int pods_dir, const PodUid& pod, const Deadline& deadline);

// Refuses when `peer` is not the process of `launcher`.
Status check_same_process(const Peer& peer, const Launcher& launcher, const std::string& what);

}  // namespace privsep
