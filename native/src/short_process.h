// A process for a moment: what a thread cannot do because it shares something with the others.
#pragma once

#include <sched.h>

#include "deadline.h"
#include "result.h"

namespace privsep {

// The only clone(2) flags with which this program makes a process. No thread, no namespace, no memory or descriptors
// in common, and no signal at its end: whoever waits for children in general never sees it.
inline constexpr int kProcessFlags = CLONE_PIDFD;

// Runs `work` in a copy of this process that has the calling thread alone, with its credentials, namespaces and
// filters. `work` makes async-signal-safe calls only, shares no memory but what is mapped so, and returns the exit
// code. The process is gone when this returns. ETIMEDOUT: it was killed at the deadline. ECANCELED: it ended by a
// signal.
Result<int> run_short_process(int (*work)(void*), void* argument, const Deadline& deadline);

}  // namespace privsep
