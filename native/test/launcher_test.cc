// Pinning where the kernel lacks what newer ones have: the same outcome by the older calls.
#include "../src/launcher.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "../src/kernel.h"
#include "check.h"
#include "fixture.h"

using namespace privsep;
using namespace privsep::test;

namespace {

// Makes the calling process see a kernel before 6.5: no SO_PEERPIDFD, no ioctls on pidfds.
bool forget_new_interfaces() {
  auto argument = [](unsigned i) { return static_cast<uint32_t>(offsetof(seccomp_data, args) + 8 * i); };
  const sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getsockopt, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, argument(2)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kernel::kSoPeerPidfd, 6, 0),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ioctl, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, argument(1)),
      BPF_STMT(BPF_ALU | BPF_AND | BPF_K, 0xff00),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0xff00, 2, 0),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOPROTOOPT),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOTTY),
  };
  sock_fprog program{sizeof code / sizeof code[0], const_cast<sock_filter*>(code)};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

ino_t inode_at(const char* path) {
  struct stat st {};
  return ::stat(path, &st) == 0 ? st.st_ino : 0;
}

ino_t inode_of(int fd) {
  struct stat st {};
  return ::fstat(fd, &st) == 0 ? st.st_ino : 0;
}

bool pins_this_process() {
  Pods pods;
  const PodUid pod = *PodUid::parse(kPod);
  Fd listener = listen_at(pods.volume("sockets") + "/launcher-sock");
  auto volume = open_volume(pods.fd(), pod, PodVolume::kSockets);
  auto inode = open_socket(volume->get(), kLauncherSocket);
  auto peer = connect_peer(inode->get(), Deadline::after_ms(5000), kLauncherSocket);
  if (!peer || peer->pid != ::getpid()) return false;
  auto pid = pid_of(peer->pidfd.get());
  auto mntns = mount_namespace_of(peer->pidfd.get());
  auto netns = network_namespace_of(peer->pidfd.get());
  if (!pid || *pid != ::getpid() || !mntns || !netns) return false;
  if (inode_of(mntns->get()) != inode_at("/proc/self/ns/mnt") || inode_of(netns->get()) != inode_at("/proc/self/ns/net")) {
    return false;
  }
  auto outside = check_process(peer->pidfd.get(), pod, "launcher");
  return !outside && outside.error().code == EPERM && outside.error().refused;
}

// A listener that forks and exits: its child keeps the socket open, so connecting still works.
bool refuses_a_listener_that_exited() {
  Pods pods;
  const PodUid pod = *PodUid::parse(kPod);
  int hold[2];
  if (::pipe(hold) != 0) return false;
  pid_t parent = ::fork();
  if (parent == 0) {
    Fd listener = listen_at(pods.volume("sockets") + "/launcher-sock");
    if (::fork() == 0) {
      ::close(hold[1]);
      char byte;
      (void)!::read(hold[0], &byte, 1);  // until the test ends
      ::_exit(0);
    }
    ::_exit(0);
  }
  ::waitpid(parent, nullptr, 0);
  auto volume = open_volume(pods.fd(), pod, PodVolume::kSockets);
  auto inode = open_socket(volume->get(), kLauncherSocket);
  auto connection = connect_socket_inode(inode->get(), Deadline::after_ms(5000), kLauncherSocket);
  auto peer = connect_peer(inode->get(), Deadline::after_ms(5000), kLauncherSocket);
  ::close(hold[0]);
  ::close(hold[1]);
  return connection && !peer && peer.error().code == ESRCH;
}

}  // namespace

TEST(listener_and_namespaces_are_pinned) { CHECK(in_child(pins_this_process)); }
TEST(listener_and_namespaces_are_pinned_on_older_kernels) {
  CHECK(in_child([] { return forget_new_interfaces() && pins_this_process(); }));
}
TEST(exited_listener_is_refused) { CHECK(in_child(refuses_a_listener_that_exited)); }
TEST(exited_listener_is_refused_on_older_kernels) {
  CHECK(in_child([] { return forget_new_interfaces() && refuses_a_listener_that_exited(); }));
}

TEST(same_process_is_told_by_pidfd) {
  CHECK(in_child([] {
    Pods pods;
    const PodUid pod = *PodUid::parse(kPod);
    Fd listener = listen_at(pods.volume("sockets") + "/launcher-sock");
    auto volume = open_volume(pods.fd(), pod, PodVolume::kSockets);
    auto inode = open_socket(volume->get(), kLauncherSocket);
    auto peer = connect_peer(inode->get(), Deadline::after_ms(5000), kLauncherSocket);
    Launcher same;
    same.pidfd.reset(kernel::pidfd_open(::getpid()));
    Launcher other;
    other.pidfd.reset(kernel::pidfd_open(::getppid()));
    return check_same_process(*peer, same, "x") && check_same_process(*peer, other, "x").error().code == EPERM;
  }));
}
