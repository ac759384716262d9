// Device nodes in a launcher's /dev.
#pragma once

#include <sys/types.h>

#include <string_view>
#include <vector>

#include "launcher.h"
#include "namespaces.h"

namespace privsep {

enum class ClaimableDevice { kKvm, kTun, kVhostNet, kVhostVsock };
enum class ClaimOutcome { kClaimed, kAlreadyOwned, kMissing };

Result<ClaimableDevice> parse_device(std::string_view name);

// Gives the nodes to uid:gid, in the order given. Refused: what is not the character device of the expected
// numbers, and a node of the host's own /dev, whose owner would change for the whole host.
Result<std::vector<ClaimOutcome>> claim_devices(Home& home, const Launcher& launcher,
                                                const std::vector<ClaimableDevice>& devices, uid_t uid, gid_t gid);

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
Result<std::vector<ObservedDevice>> observe_devices(Home& home, const Launcher& launcher);

}  // namespace privsep
