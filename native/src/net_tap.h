// Tap devices for QEMU.
#pragma once

#include "net_link.h"
#include "net_ops.h"
#include "net_transaction.h"

namespace privsep {

struct TapOwner {
  uint32_t uid = 0;
  uint32_t gid = 0;
};

// Creates a persistent tap in the current network namespace, flags as libvirt expects to find them when
// it opens the tap. It appears at once with owner and group, or not at all. With `label` a process with that label
// makes it (net_tap_label.h).
Result<LinkRecord> create_tap(Links& links, Transaction& changes, const std::string& name, TapOwner owner,
                              bool multi_queue, const std::optional<TapLabel>& label);

}  // namespace privsep
