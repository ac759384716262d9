#include "seccomp.h"

#include <linux/audit.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "device_program.h"
#include "short_process.h"

namespace privsep {

namespace {

#if defined(__x86_64__)
constexpr uint32_t kArch = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
constexpr uint32_t kArch = AUDIT_ARCH_AARCH64;
#else
#error "no system call filter for this architecture"
#endif

constexpr uint32_t kNewNamespaces =
    CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET;
constexpr uint32_t kAllow = SECCOMP_RET_ALLOW;
constexpr uint32_t kDeny = SECCOMP_RET_ERRNO | EPERM;
constexpr uint32_t kUnknown = SECCOMP_RET_ERRNO | ENOSYS;
// Linux 6.15; the same number everywhere.
constexpr int kOpenTreeAttr = 467;

// What no thread without privileges has a use for.
constexpr int kForbidden[] = {
    // namespaces and mounts
    SYS_setns, SYS_unshare, SYS_mount, SYS_umount2, SYS_move_mount, SYS_open_tree, kOpenTreeAttr,
    SYS_mount_setattr, SYS_fsopen, SYS_fsconfig, SYS_fsmount, SYS_fspick, SYS_pivot_root, SYS_chroot,
    // programs and processes
    SYS_execve, SYS_execveat,
#if defined(__x86_64__)
    SYS_fork, SYS_vfork,
#endif
    // other processes
    SYS_ptrace, SYS_process_vm_readv, SYS_process_vm_writev, SYS_process_madvise, SYS_kcmp, SYS_pidfd_getfd,
    // the kernel
    SYS_bpf, SYS_kexec_load,
#if defined(SYS_kexec_file_load)
    SYS_kexec_file_load,
#endif
    SYS_init_module, SYS_finit_module, SYS_delete_module, SYS_perf_event_open, SYS_userfaultfd, SYS_keyctl,
    SYS_add_key, SYS_request_key, SYS_swapon, SYS_swapoff, SYS_reboot, SYS_settimeofday, SYS_clock_settime,
    SYS_clock_adjtime, SYS_adjtimex, SYS_acct, SYS_quotactl, SYS_syslog, SYS_sethostname, SYS_setdomainname,
    SYS_vhangup, SYS_open_by_handle_at, SYS_mknodat,
#if defined(__x86_64__)
    SYS_iopl, SYS_ioperm, SYS_mknod,
#endif
    // io_uring performs calls that no filter sees
    SYS_io_uring_setup, SYS_io_uring_enter, SYS_io_uring_register,
    // credentials
    SYS_setuid, SYS_setgid, SYS_setreuid, SYS_setregid, SYS_setresuid, SYS_setresgid, SYS_setfsuid,
    SYS_setfsgid, SYS_setgroups, SYS_capset};

// What operations, the C library's threads and allocator, and handing results to Node use.
constexpr int kPrivilegedCalls[] = {
    // descriptors and files
    SYS_read, SYS_write, SYS_readv, SYS_writev, SYS_pread64, SYS_pwrite64, SYS_lseek, SYS_close, SYS_dup,
    SYS_fcntl, SYS_ioctl, SYS_openat, SYS_openat2, SYS_fstat, SYS_newfstatat, SYS_statx, SYS_statfs, SYS_fstatfs,
    SYS_getdents64, SYS_readlinkat, SYS_faccessat, SYS_faccessat2, SYS_getxattr, SYS_fchmod, SYS_fchmodat, SYS_fchown,
    SYS_fchownat, SYS_mkdirat, SYS_mknodat, SYS_unlinkat, SYS_renameat, SYS_renameat2, SYS_fsync, SYS_ftruncate,
    SYS_fchdir, SYS_chdir, SYS_umask, SYS_inotify_add_watch, SYS_ppoll,
#if defined(__x86_64__)
    SYS_open, SYS_stat, SYS_lstat, SYS_access, SYS_readlink, SYS_rename, SYS_poll, SYS_dup2,
#endif
    // namespaces, mounts, processes
    SYS_setns, SYS_open_tree, SYS_move_mount, SYS_mount_setattr, SYS_umount2, SYS_pidfd_open,
    // scheduling of other processes
    SYS_sched_getscheduler, SYS_sched_getparam, SYS_sched_setscheduler, SYS_sched_setaffinity,
    // sockets
    SYS_connect, SYS_bind, SYS_listen, SYS_getsockname, SYS_getpeername, SYS_getsockopt, SYS_setsockopt,
    SYS_sendto, SYS_recvfrom, SYS_sendmsg, SYS_recvmsg, SYS_shutdown,
    // own state
    SYS_capget, SYS_capset, SYS_prctl, SYS_getpid, SYS_gettid, SYS_getuid, SYS_geteuid, SYS_getgid, SYS_getegid,
    SYS_getrandom, SYS_prlimit64, SYS_sched_yield, SYS_sched_getaffinity, SYS_clock_gettime, SYS_clock_nanosleep,
    SYS_nanosleep, SYS_gettimeofday,
#if defined(__x86_64__)
    SYS_getrlimit, SYS_time, SYS_arch_prctl,
#endif
    // memory, threads, signals
    SYS_mmap, SYS_munmap, SYS_mprotect, SYS_mremap, SYS_madvise, SYS_brk, SYS_futex, SYS_set_robust_list,
    SYS_rseq, SYS_set_tid_address, SYS_rt_sigprocmask, SYS_rt_sigaction, SYS_rt_sigreturn, SYS_sigaltstack,
    SYS_tgkill, SYS_restart_syscall, SYS_exit, SYS_exit_group};

// What making a short process takes, and what it does besides.
constexpr int kProcessCalls[] = {SYS_waitid, SYS_getppid, SYS_close_range};

class Program {
 public:
  Program() {
    load(offsetof(seccomp_data, arch));
    jump(BPF_JEQ, kArch, 1, 0);
    finish(kUnknown);
    load_number();
#if defined(__x86_64__)
    // The x32 calls have numbers of their own.
    jump(BPF_JGE, 0x40000000, 0, 1);
    finish(kUnknown);
#endif
  }

  void rule(int number, uint32_t action) {
    jump(BPF_JEQ, static_cast<uint32_t>(number), 0, 1);
    finish(action);
  }

  // Threads in the same namespaces, and processes only as run_short_process makes them, if at all. The arguments of
  // clone3 are out of reach: as unknown the C library falls back to clone.
  void threads(bool and_short_processes) {
    rule(SYS_clone3, kUnknown);
    jump(BPF_JEQ, SYS_clone, 0, and_short_processes ? 7 : 5);
    load_argument(0);
    if (and_short_processes) rule(kProcessFlags, kAllow);
    jump(BPF_JSET, kNewNamespaces, 1, 0);
    jump(BPF_JSET, CLONE_THREAD, 1, 0);
    finish(kDeny);
    finish(kAllow);
  }

  // The call with one of the given values of an argument, the first unless said, refused with any other.
  template <size_t N>
  void only_with(int number, const int (&values)[N], int argument = 0) {
    jump(BPF_JEQ, static_cast<uint32_t>(number), 0, static_cast<uint8_t>(2 * N + 2));
    load_argument(argument);
    for (int value : values) rule(value, kAllow);
    finish(kDeny);
  }

  // setresuid of the effective user alone, and never to root.
  void effective_user() {
    constexpr uint32_t kUnchanged = 0xffffffff;
    jump(BPF_JEQ, SYS_setresuid, 0, 8);
    load_argument(0);
    jump(BPF_JEQ, kUnchanged, 0, 5);
    load_argument(2);
    jump(BPF_JEQ, kUnchanged, 0, 3);
    load_argument(1);
    jump(BPF_JEQ, 0, 1, 0);
    finish(kAllow);
    finish(kDeny);
  }

  std::vector<sock_filter> end(uint32_t otherwise) {
    finish(otherwise);
    return std::move(code_);
  }

 private:
  void load(size_t offset) { code_.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, static_cast<uint32_t>(offset))); }
  void load_number() { load(offsetof(seccomp_data, nr)); }
  // The low half: both architectures are little endian, and the arguments tested are ints.
  void load_argument(int i) { load(offsetof(seccomp_data, args) + static_cast<size_t>(i) * 8); }
  void jump(uint16_t test, uint32_t value, uint8_t yes, uint8_t no) {
    code_.push_back(BPF_JUMP(static_cast<uint16_t>(BPF_JMP | test | BPF_K), value, yes, no));
  }
  void finish(uint32_t action) { code_.push_back(BPF_STMT(BPF_RET | BPF_K, action)); }

  std::vector<sock_filter> code_;
};

std::vector<sock_filter> privileged_filter(bool with_processes) {
  Program program;
  program.threads(with_processes);
  if (with_processes) {
    program.only_with(SYS_pidfd_send_signal, {SIGKILL}, 1);
    for (int number : kProcessCalls) program.rule(number, kAllow);
  }
  program.only_with(SYS_unshare, {CLONE_FS});
  program.only_with(SYS_socket, {AF_UNIX, AF_NETLINK, AF_INET, AF_INET6, AF_VSOCK});
  program.only_with(SYS_bpf, kDeviceProgramCommands);
  program.effective_user();
  for (int number : kPrivilegedCalls) program.rule(number, kAllow);
  return program.end(kDeny);
}

std::vector<sock_filter> ordinary_filter(bool network) {
  Program program;
  program.threads(false);
  if (!network) program.only_with(SYS_socket, {AF_UNIX});
  for (int number : kForbidden) program.rule(number, kDeny);
  return program.end(kAllow);
}

}  // namespace

std::vector<sock_filter> build_filter(FilterProfile profile) {
  switch (profile) {
    case FilterProfile::kPrivileged:
      return privileged_filter(false);
    case FilterProfile::kPrivilegedWithProcesses:
      return privileged_filter(true);
    case FilterProfile::kHelper:
      return ordinary_filter(false);
    case FilterProfile::kAgent:
      return ordinary_filter(true);
  }
  return privileged_filter(false);
}

int install_filter(const std::vector<sock_filter>& filter) {
  if (::syscall(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return errno;
  sock_fprog program{static_cast<unsigned short>(filter.size()), const_cast<sock_filter*>(filter.data())};
  return ::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) == 0 ? 0 : errno;
}

}  // namespace privsep
