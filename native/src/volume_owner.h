// Giving away what is in a volume.
#pragma once

#include <sys/types.h>

#include <string>

#include "result.h"

namespace privsep {

// On file systems of this f_type (statfs) somebody else than this kernel decides who may give a file away, a server for
// the most part, to which the helper is an ordinary user.
bool others_decide(unsigned long type);

// kKept: the one who decides does not let the helper; the user may be able to use it all the same.
enum class Given { kAlready, kChanged, kKept };

// Gives the file or directory to uid:gid. `what` names it in an error.
Result<Given> give_away(int inode, uid_t uid, gid_t gid, const std::string& what);

}  // namespace privsep
