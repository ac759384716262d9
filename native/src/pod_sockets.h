// Sockets and the marker file in a launcher pod's volumes.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "deadline.h"
#include "launcher.h"
#include "pod.h"

namespace privsep {

struct InodeId {
  uint64_t dev = 0;
  uint64_t ino = 0;
};

struct ListeningSocket {
  Fd fd;
  InodeId inode;
};

enum class ContainerDiskState { kAbsent, kNotListening, kReady };

// A non-blocking stream connection to the pinned launcher. Below the volume neither a link nor a mount is passed.
Result<Fd> connect_launcher(int pods_dir, const PodUid& pod, const VolumeEntry& entry, const Launcher& launcher,
                            const Deadline& deadline);

// The same to a process of the pod, or to what one that has exited left listening.
Result<Fd> connect_socket(int pods_dir, const PodUid& pod, const VolumeEntry& entry, const Deadline& deadline);

// The living process that listens on hp.sock of a pod that is no launcher pod.
Result<Peer> attachment_process(int pods_dir, const PodUid& pod, const Deadline& deadline);

// Why nobody was reached: no socket, no listener, one that does not accept, or one that has exited.
bool is_not_listening(const Error& error);

// A non-blocking stream connection to it.
Result<Fd> connect_attachment(int pods_dir, const PodUid& pod, const Deadline& deadline);

// Listens at the entry with mode 0755 and the given owner. An old socket there is replaced, anything else is
// refused. A missing directory right below the volume is made, mode 0755 and same owner.
Result<ListeningSocket> listen_socket(int pods_dir, const PodUid& pod, const VolumeEntry& entry, uid_t uid,
                                      gid_t gid);

// True when the entry was that socket and is gone now. False too when something else is in the way there.
Result<bool> unlink_socket(int pods_dir, const PodUid& pod, const VolumeEntry& entry, const InodeId& inode);

// Gives the socket at the entry to uid:gid. False when it was theirs already. ENOENT where there is none.
Result<bool> claim_socket(int pods_dir, const PodUid& pod, const VolumeEntry& entry, uid_t uid, gid_t gid);

// Creates the marker unless it is there (false). Refuses while launcher-sock has a listener: a launcher that
// hangs is not a dead one.
Result<bool> mark_unresponsive(int pods_dir, const PodUid& pod, const Deadline& deadline);

// Whether the processes of container disks listen, and without an index that of the kernel-boot container: in order, up
// to the first that is not ready, so that of those that do not accept one alone is waited for. An error names its item.
Result<std::vector<ContainerDiskState>> container_disk_states(int pods_dir, const PodUid& pod,
                                                              const std::vector<std::optional<int>>& indexes,
                                                              const Deadline& deadline);

}  // namespace privsep
