// Giving up privileges for good, for every thread of the process.
#pragma once

#include <sys/types.h>

#include <vector>

#include "result.h"
#include "seccomp.h"

namespace privsep {

// Refuses root's user and groups.
Status check_user(uid_t uid, gid_t gid, const std::vector<gid_t>& groups);

// setgroups, setresgid and setresuid for all threads, then checks the outcome: nothing is left to threads not
// in `keepers`. Threads in `keepers` need CAP_SETUID and CAP_SETGID in effect meanwhile.
Status change_user(uid_t uid, gid_t gid, const std::vector<gid_t>& groups, const std::vector<pid_t>& keepers);

// For every thread but `keepers`: no capabilities at all, no_new_privs, the filter. For the process: not
// dumpable, no core files. Threads that the confined ones make later inherit all of it.
Status confine_threads(FilterProfile profile, const std::vector<pid_t>& keepers);

}  // namespace privsep
