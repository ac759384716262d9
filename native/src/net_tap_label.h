// Taps that have the label of a launcher (SELinux).
//
// The kernel gives a tap the label of the task that makes it, and a task may change its label only if no other shares
// its memory: hence a process. It loads no program, so no_new_privs is no hindrance; the policy must allow the
// helper's domain the dynamic transition to the launcher's, as container-selinux does for spc_t.
#pragma once

#include <string>

#include "net_ops.h"
#include "tun_device.h"

namespace privsep {

// Makes the tap in the current network namespace. Where that fails there may be one if `may_exist` says so. Errors name
// the label, the step and, for a transition that the policy refuses, the rule that it lacks.
Status make_labelled_tap(TapRequests requests, const std::string& name, const TapLabel& label, bool* may_exist);

// What that process does first: closes every descriptor but one, and keeps no capability but CAP_NET_ADMIN. 0 or errno.
// Async-signal-safe.
int confine_to(int descriptor);

}  // namespace privsep
