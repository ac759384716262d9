// Device nodes in a launcher's /dev.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>
#include <vector>

#include "device_numbers.h"
#include "launcher.h"
#include "namespaces.h"

namespace privsep {

inline constexpr size_t kMaxClaimedVolumes = 1000;

// kVfio: /dev/vfio/vfio, which anybody may open then, and with it all other entries of /dev/vfio.
enum class ClaimableDevice { kKvm, kMshv, kTun, kVhostNet, kVhostVsock, kSev, kVfio };
enum class ClaimOutcome { kClaimed, kAlreadyOwned, kMissing };

Result<ClaimableDevice> parse_device(std::string_view name);

// Gives the nodes to uid:gid, devices first, each in the order given. Refused: what is not the character device of the
// expected numbers; for a volume, what is not a block device /dev/<volume> on the file system of the launcher's /dev;
// and a node of the host's own /dev, whose owner would change for the whole host. One outcome for each device, then
// one for each volume.
Result<std::vector<ClaimOutcome>> claim_devices(Home& home, const Launcher& launcher, const DeviceNumbers& numbers,
                                                const std::vector<ClaimableDevice>& devices,
                                                const std::vector<std::string>& volumes, uid_t uid, gid_t gid);

enum class NodeState { kMissing, kPresent, kOther, kHost };

// A claimable device as the launcher's /dev shows it.
struct ObservedDevice {
  const char* name = "";
  // kOther: not the character device of the expected numbers, or behind a link. kHost: the host's own node.
  NodeState state = NodeState::kMissing;
  uid_t uid = 0;
  gid_t gid = 0;
  mode_t mode = 0;  // permission bits
};

// All claimable devices. Changes nothing.
Result<std::vector<ObservedDevice>> observe_devices(Home& home, const Launcher& launcher,
                                                    const DeviceNumbers& numbers);

}  // namespace privsep
