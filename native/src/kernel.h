// Kernel interfaces that the C library or its headers may not know yet. Numbers are ABI.
#pragma once

#include <linux/openat2.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include <cstdint>

namespace privsep::kernel {

// getsockopt(SOL_SOCKET): pidfd of the process that called listen(), Linux 6.5.
inline constexpr int kSoPeerPidfd = 77;

// setsockopt(SOL_SOCKET) of unix sockets: whether descriptors may be sent to it (SCM_RIGHTS), Linux 6.16.
inline constexpr int kSoPassRights = 83;

// f_type of descriptors of pidfs, Linux 6.9; before, pidfds are anonymous inodes.
inline constexpr long kPidfsMagic = 0x50494446;

// linux/pidfd.h, Linux 6.13.
struct PidfdInfo {
  uint64_t mask;
  uint64_t cgroup_id;
  uint32_t pid, tgid, ppid;
  uint32_t ruid, rgid, euid, egid, suid, sgid, fsuid, fsgid;
  int32_t exit_code;
};
static_assert(sizeof(PidfdInfo) == 64, "PIDFD_INFO_SIZE_VER0");
inline constexpr uint64_t kPidfdInfoPid = 1;
inline constexpr unsigned long kPidfdGetInfo = _IOWR(0xFF, 11, PidfdInfo);

// Linux 6.11.
inline constexpr unsigned long kPidfdGetMntNamespace = _IO(0xFF, 3);
inline constexpr unsigned long kPidfdGetNetNamespace = _IO(0xFF, 4);

inline int openat2(int dirfd, const char* path, open_how* how) {
  return static_cast<int>(::syscall(SYS_openat2, dirfd, path, how, sizeof *how));
}
inline int pidfd_open(pid_t pid) { return static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)); }

}  // namespace privsep::kernel
