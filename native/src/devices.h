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

}  // namespace privsep
