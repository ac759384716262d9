// What passt-repair does for passt during a migration, without the program.
//
// passt(1) may not set TCP_REPAIR on its sockets itself, which takes CAP_NET_ADMIN. It listens on a socket of its
// own, hands TCP sockets over by SCM_RIGHTS with one byte, the value that TCP_REPAIR is to have, and waits for the
// byte to come back. See passt's repair.c.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <optional>
#include <utility>

#include "deadline.h"
#include "fd.h"
#include "launcher.h"
#include "result.h"

namespace privsep {

enum class RepairSide {
  kSource,  // passt runs already and listens
  kTarget,  // passt is about to start
};

// SCM_MAX_FD of the kernel: more are not in one message.
inline constexpr size_t kMaxRepaired = 253;

// A connection to passt. What was sent and not read goes with it, so the end receives it: the sockets among it are
// closed as others are.
class PasstConnection {
 public:
  PasstConnection() = default;
  explicit PasstConnection(Fd fd) : fd_(std::move(fd)) {}
  PasstConnection(PasstConnection&&) = default;
  PasstConnection& operator=(PasstConnection&&) = default;
  ~PasstConnection();

  bool valid() const { return fd_.valid(); }
  int get() const { return fd_.get(); }

 private:
  Fd fd_;
};

// One message: each socket gets the value, then the answer goes back. The number of sockets, nothing when passt has
// closed the connection. Refuses a message of another form, and as a whole one with anything but TCP sockets of the
// network namespace `netns`. The sockets are closed before the answer, and none of them makes that wait (SO_LINGER).
Result<std::optional<size_t>> repair_message(int connection, const struct stat& netns);

// Serves the first *.socket.repair, in the order of bytes, below qemu/run/passt of the pod's libvirt-runtime until
// passt closes the connection; on the target waits for it to appear. Every socket that comes must be a TCP socket of
// the launcher's network namespace. The number of sockets. ECANCELED when `cancel` becomes readable.
Result<uint64_t> repair_passt(int pods_dir, const PodUid& pod, const Launcher& launcher, RepairSide side, int cancel,
                              const Deadline& deadline);

}  // namespace privsep
