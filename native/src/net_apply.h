// Bringing the current network namespace to a plan.
#pragma once

#include "net_ops.h"
#include "net_transaction.h"

namespace privsep {

// As apply_network, in the namespace of the calling thread. `hook` is empty except in tests.
Result<bool> apply_plan(const NetworkPlan& plan, const StepHook& hook);

}  // namespace privsep
