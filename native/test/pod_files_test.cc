// Sockets, marker and files in a pod's volumes.
#include <fcntl.h>
#include <sys/stat.h>

#include <atomic>
#include <thread>

#include "../src/directory.h"
#include "../src/pod_sockets.h"
#include "../src/volume_file.h"
#include "../src/walk.h"
#include "check.h"
#include "fixture.h"

using namespace privsep;
using namespace privsep::test;

static PodUid pod() { return *PodUid::parse(kPod); }
static Deadline soon() { return Deadline::after_ms(2000); }
static constexpr const char* kPipe = "domain-notify-pipe.sock";

TEST(pod_state_tells_what_is_there) {
  Pods pods;
  auto state = pod_state(pods.fd(), pod());
  REQUIRE(state);
  CHECK(state->directory && state->launcher_socket == EntryState::kAbsent && !state->unresponsive_marker);
  Fd launcher = listen_at(pods.volume("sockets") + "/launcher-sock");
  write_file(pods.volume("sockets") + "/launcher-unresponsive", "");
  Fd disk = listen_at(pods.volume("container-disks") + "/disk_3.sock");
  Fd first = listen_at(pods.volume("container-disks") + "/disk_1.sock");
  write_file(pods.volume("container-disks") + "/disk_2.sock", "not a socket");
  Fd kernel = listen_at(pods.volume("container-disks") + "/kernel-boot.sock");
  state = pod_state(pods.fd(), pod());
  REQUIRE(state);
  CHECK(state->launcher_socket == EntryState::kPresent && state->unresponsive_marker && state->kernel_boot);
  CHECK((state->container_disks == std::vector<int>{1, 3}));
  CHECK(!state->container_disk_binary);
  auto other = pod_state(pods.fd(), *PodUid::parse("11111111-2222-3333-4444-555555555555"));
  CHECK(other && !other->directory && other->launcher_socket == EntryState::kAbsent);
}

TEST(pod_state_refuses_links) {
  Pods pods;
  CHECK(::symlink("/tmp/none", (pods.volume("sockets") + "/launcher-sock").c_str()) == 0);
  auto state = pod_state(pods.fd(), pod());
  CHECK(state && state->directory && state->launcher_socket == EntryState::kRefused);
  ::unlink((pods.volume("sockets") + "/launcher-sock").c_str());
  ::rmdir(pods.volume("sockets").c_str());
  CHECK(::symlink("public", pods.volume("sockets").c_str()) == 0);
  state = pod_state(pods.fd(), pod());
  CHECK(state && !state->directory && state->launcher_socket == EntryState::kRefused);
}

TEST(only_sockets_are_connected_to) {
  Pods pods;
  auto volume = open_volume(pods.fd(), pod(), PodVolume::kSockets);
  REQUIRE(volume);
  const std::string path = pods.volume("sockets") + "/launcher-sock";
  write_file(path, "");
  CHECK(open_socket(volume->get(), "launcher-sock").error().code == ENOTSOCK);
  ::unlink(path.c_str());
  CHECK(::mkfifo(path.c_str(), 0666) == 0);
  CHECK(open_socket(volume->get(), "launcher-sock").error().refused);
  ::unlink(path.c_str());
  CHECK(::symlink("other", path.c_str()) == 0);
  Fd other = listen_at(pods.volume("sockets") + "/other");
  CHECK(open_socket(volume->get(), "launcher-sock").error().code == ELOOP);
}

TEST(dead_and_hung_listeners_differ) {
  Pods pods;
  auto volume = open_volume(pods.fd(), pod(), PodVolume::kSockets);
  Fd listener = listen_at(pods.volume("sockets") + "/launcher-sock", 0);
  auto inode = open_socket(volume->get(), "launcher-sock");
  REQUIRE(inode);
  auto first = connect_socket_inode(inode->get(), soon(), "launcher-sock");
  CHECK(first);
  // The backlog of 0 has room for one; nobody accepts.
  auto second = connect_socket_inode(inode->get(), soon(), "launcher-sock");
  CHECK(!second && second.error().code == EAGAIN);
  auto marked = mark_unresponsive(pods.fd(), pod(), soon());
  CHECK(!marked && marked.error().refused && marked.error().code == EAGAIN);
  listener.reset();
  auto dead = connect_socket_inode(inode->get(), soon(), "launcher-sock");
  CHECK(!dead && dead.error().code == ECONNREFUSED);
  auto passed = connect_socket_inode(inode->get(), Deadline::after_ms(0), "launcher-sock");
  CHECK(!passed && passed.error().code == ETIMEDOUT);
}

TEST(listener_is_pinned_by_pidfd) {
  Pods pods;
  auto volume = open_volume(pods.fd(), pod(), PodVolume::kSockets);
  Fd listener = listen_at(pods.volume("sockets") + "/launcher-sock");
  auto inode = open_socket(volume->get(), "launcher-sock");
  REQUIRE(inode);
  auto peer = connect_peer(inode->get(), soon(), "launcher-sock");
  REQUIRE(peer);
  CHECK(peer->pid == ::getpid());
  CHECK(*pid_of(peer->pidfd.get()) == ::getpid());
  // This process is in no pod.
  auto launcher = pin_launcher(pods.fd(), pod(), soon());
  CHECK(!launcher && launcher.error().refused && launcher.error().operation == "cgroup of launcher");
}

TEST(marker_is_for_dead_launchers) {
  Pods pods;
  Fd listener = listen_at(pods.volume("sockets") + "/launcher-sock");
  auto marked = mark_unresponsive(pods.fd(), pod(), soon());
  CHECK(!marked && marked.error().refused && marked.error().code == EBUSY);
  listener.reset();
  CHECK(*mark_unresponsive(pods.fd(), pod(), soon()));
  CHECK(!*mark_unresponsive(pods.fd(), pod(), soon()));
  struct stat st {};
  CHECK(::stat((pods.volume("sockets") + "/launcher-unresponsive").c_str(), &st) == 0 && st.st_size == 0);
}

TEST(listening_replaces_only_sockets) {
  Pods pods;
  const std::string path = pods.volume("public") + "/" + kPipe;
  auto first = listen_socket(pods.fd(), pod(), PodVolume::kPublic, kPipe, 107, 107);
  REQUIRE(first);
  struct stat st {};
  CHECK(::stat(path.c_str(), &st) == 0 && st.st_uid == 107 && st.st_gid == 107 && (st.st_mode & 07777) == 0755);
  CHECK(st.st_ino == first->inode.ino && st.st_dev == first->inode.dev);
  auto second = listen_socket(pods.fd(), pod(), PodVolume::kPublic, kPipe, 107, 107);
  REQUIRE(second);
  CHECK(!*unlink_socket(pods.fd(), pod(), PodVolume::kPublic, kPipe, {first->inode.dev, first->inode.ino + 100000}));
  CHECK(*unlink_socket(pods.fd(), pod(), PodVolume::kPublic, kPipe, second->inode));
  CHECK(!*unlink_socket(pods.fd(), pod(), PodVolume::kPublic, kPipe, second->inode));
  write_file(path, "precious");
  auto third = listen_socket(pods.fd(), pod(), PodVolume::kPublic, kPipe, 107, 107);
  CHECK(!third && third.error().refused && third.error().unchanged && read_file(path) == "precious");
  ::unlink(path.c_str());
  CHECK(::symlink("/tmp/none", path.c_str()) == 0);
  third = listen_socket(pods.fd(), pod(), PodVolume::kPublic, kPipe, 107, 107);
  CHECK(!third && third.error().refused);
  CHECK(!listen_socket(pods.fd(), pod(), PodVolume::kPublic, "../x", 107, 107));
}

TEST(container_disk_of_nobody_is_not_ready) {
  Pods pods;
  CHECK(*container_disk_state(pods.fd(), pod(), 0, soon()) == ContainerDiskState::kAbsent);
  Fd listener = listen_at(pods.volume("container-disks") + "/disk_0.sock");
  // Listens, but from outside the pod.
  CHECK(*container_disk_state(pods.fd(), pod(), 0, soon()) == ContainerDiskState::kNotListening);
  listener.reset();
  CHECK(*container_disk_state(pods.fd(), pod(), 0, soon()) == ContainerDiskState::kNotListening);
  CHECK(::symlink("disk_0.sock", (pods.volume("container-disks") + "/disk_1.sock").c_str()) == 0);
  CHECK(container_disk_state(pods.fd(), pod(), 1, soon()).error().refused);
  CHECK(!container_disk_state(pods.fd(), pod(), 1000, soon()));
}

TEST(volume_files_are_replaced_whole) {
  Pods pods;
  TemporaryDirectory outside;
  const std::string canary = outside.path() + "/canary";
  const std::string path = pods.volume("private") + "/vif-cache-eth0.json";
  const FileOwner owner{107, 107, 0644};
  auto write = [&](const std::string& content) {
    return write_volume_file(pods.fd(), pod(), PodVolume::kPrivate, "vif-cache-eth0.json", content, owner);
  };
  CHECK(*write("one"));
  CHECK(!*write("one"));
  CHECK(*write("two") && read_file(path) == "two");
  struct stat st {};
  CHECK(::stat(path.c_str(), &st) == 0 && st.st_uid == 107 && (st.st_mode & 07777) == 0644);

  write_file(canary, "canary");
  ::unlink(path.c_str());
  CHECK(::symlink(canary.c_str(), path.c_str()) == 0);
  CHECK(*write("three") && read_file(path) == "three" && read_file(canary) == "canary");
  CHECK(::lstat(path.c_str(), &st) == 0 && S_ISREG(st.st_mode));

  ::unlink(path.c_str());
  CHECK(::link(canary.c_str(), path.c_str()) == 0);
  CHECK(*write("canary") && read_file(canary) == "canary");
  CHECK(::stat(canary.c_str(), &st) == 0 && st.st_uid == 0 && st.st_nlink == 1);

  ::unlink(path.c_str());
  CHECK(::mkfifo(path.c_str(), 0666) == 0);
  CHECK(*write("four") && read_file(path) == "four");
  ::unlink(path.c_str());
  ::mkdir(path.c_str(), 0755);
  auto directory = write("five");
  CHECK(!directory && directory.error().unchanged);
  CHECK(list_directory(pods.fd(), {kPod, "volumes", "kubernetes.io~empty-dir", "private"}, 16)->size() == 1);
  CHECK(!write(std::string(kMaxVolumeFile + 1, 'x')));
  CHECK(!write_volume_file(pods.fd(), pod(), PodVolume::kPrivate, "x", "", {0, 0, 04755}));
}

TEST(volume_file_survives_a_swapping_pod) {
  Pods pods;
  TemporaryDirectory outside;
  write_file(outside.path() + "/f", "canary");
  const std::string volumes = pods.path() + "/" + kPod + "/volumes/kubernetes.io~empty-dir";
  CHECK(::symlink(outside.path().c_str(), (volumes + "/swap").c_str()) == 0);
  std::atomic<bool> stop{false};
  std::thread swapper([&] {
    while (!stop) ::renameat2(AT_FDCWD, (volumes + "/private").c_str(), AT_FDCWD, (volumes + "/swap").c_str(), RENAME_EXCHANGE);
  });
  for (int i = 0; i < 200; ++i) {
    (void)write_volume_file(pods.fd(), pod(), PodVolume::kPrivate, "f", std::to_string(i), {107, 107, 0644});
  }
  stop = true;
  swapper.join();
  CHECK(read_file(outside.path() + "/f") == "canary");
  struct stat st {};
  CHECK(::stat((outside.path() + "/f").c_str(), &st) == 0 && st.st_uid == 0);
}
