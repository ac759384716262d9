// The device through which taps are made.
#pragma once

#include <linux/if.h>

#include <cstdint>
#include <string>

#include "fd.h"
#include "result.h"

namespace privsep {

// Name of the device in its directory, which is /dev/net or make_labelled_tun_device's.
inline constexpr const char* kTunName = "tun";

// Opens character device 10:200 for the current network namespace. -1 and errno on failure, ENODEV for another device.
// Async-signal-safe.
int open_tun_device(int directory, const char* name);

// The ioctls that make one tap, in their order. Until the last the tap goes with the descriptor.
class TapRequests {
 public:
  static constexpr int kCount = 4;
  static constexpr int kPersist = 3;

  // Flags as libvirt expects to find them when it opens the tap.
  TapRequests(const std::string& name, uint32_t uid, uint32_t gid, bool multi_queue);

  static const char* operation(int step);
  // 0 or errno. Async-signal-safe.
  int make(int tun, int step);

 private:
  ifreq link_{};
  uint32_t uid_;
  uint32_t gid_;
};

// A directory that only its holder sees, with a device of its own that is labelled as containers' files are (SELinux):
// a process with a launcher's label may open that one. With root's privileges, at start.
Result<Fd> make_labelled_tun_device();

}  // namespace privsep
