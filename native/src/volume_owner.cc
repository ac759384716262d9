#include "volume_owner.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "walk.h"

namespace privsep {

namespace {

// Not in linux/magic.h: statfs(2), and Lustre's own headers.
constexpr unsigned long kLustre = 0x0bd00bd0;

}  // namespace

bool others_decide(unsigned long type) {
  constexpr unsigned long kTypes[] = {NFS_SUPER_MAGIC,  SMB_SUPER_MAGIC, CIFS_SUPER_MAGIC, SMB2_SUPER_MAGIC,
                                      CEPH_SUPER_MAGIC, AFS_SUPER_MAGIC, AFS_FS_MAGIC,     CODA_SUPER_MAGIC,
                                      V9FS_MAGIC,       FUSE_SUPER_MAGIC, kLustre};
  for (unsigned long each : kTypes) {
    if (type == each) return true;
  }
  return false;
}

Result<Given> give_away(int inode, uid_t uid, gid_t gid, const std::string& what) {
  auto st = stat_fd(inode, what);
  if (!st) return st.error();
  if (st->st_uid == uid && st->st_gid == gid) return Given::kAlready;
  if (::fchownat(inode, "", uid, gid, AT_EMPTY_PATH) == 0) return Given::kChanged;
  Error error = Error::last("fchownat " + what);
  struct statfs fs {};
  if ((error.code != EPERM && error.code != EACCES) || ::fstatfs(inode, &fs) != 0) return error;
  if (!others_decide(static_cast<unsigned long>(fs.f_type))) return error;
  return Given::kKept;
}

}  // namespace privsep
