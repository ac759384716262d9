// Sockets in a pod's volumes: connecting to them, and listening on own ones.
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "../src/kernel.h"
#include "../src/pod_sockets.h"
#include "../src/walk.h"
#include "check.h"
#include "fixture.h"

using namespace privsep;
using namespace privsep::test;

static PodUid pod() { return *PodUid::parse(kPod); }
static Deadline soon() { return Deadline::after_ms(2000); }
static constexpr const char* kPipe = "domain-notify-pipe.sock";

static VolumeEntry entry(PodVolume volume, const std::vector<std::string>& path) {
  return *VolumeEntry::parse(volume, path);
}

static mode_t type_of(const std::string& path) {
  struct stat st {};
  return ::lstat(path.c_str(), &st) == 0 ? st.st_mode & S_IFMT : 0;
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

TEST(connections_of_other_processes_are_refused) {
  Pods pods;
  // This process listens, and is in no pod.
  const VolumeEntry qemu = entry(PodVolume::kPrivate, {"uid", "virt-vnc"});
  CHECK(connect_socket(pods.fd(), pod(), qemu, soon()).error().code == ENOENT);
  ::mkdir((pods.volume("private") + "/uid").c_str(), 0755);
  Fd listener = listen_at(pods.volume("private") + "/uid/virt-vnc");
  auto foreign = connect_socket(pods.fd(), pod(), qemu, soon());
  CHECK(!foreign && foreign.error().refused && foreign.error().operation == "cgroup of listener of virt-vnc");
  Launcher other;
  other.pidfd.reset(kernel::pidfd_open(::getppid()));
  foreign = connect_launcher(pods.fd(), pod(), qemu, other, soon());
  CHECK(!foreign && foreign.error().refused && foreign.error().code == EPERM);
}

TEST(a_socket_whose_listener_has_exited_is_the_pods_own) {
  CHECK(in_child([] {
    Pods pods;
    const VolumeEntry qemu = entry(PodVolume::kPrivate, {"virt-vnc"});
    int hold[2];
    if (::pipe(hold) != 0) return false;
    pid_t parent = ::fork();
    if (parent == 0) {
      Fd listener = listen_at(pods.volume("private") + "/virt-vnc");
      if (::fork() == 0) {
        ::close(hold[1]);
        char byte;
        (void)!::read(hold[0], &byte, 1);  // until the test ends
      }
      ::_exit(0);
    }
    ::waitpid(parent, nullptr, 0);
    Launcher other;
    other.pidfd.reset(kernel::pidfd_open(::getpid()));
    auto any = connect_socket(pods.fd(), pod(), qemu, soon());
    auto pinned = connect_launcher(pods.fd(), pod(), qemu, other, soon());
    ::close(hold[0]);
    ::close(hold[1]);
    return any && !pinned && pinned.error().refused && pinned.error().code == ESRCH;
  }));
}

TEST(links_mounts_and_files_on_the_way_to_a_socket_are_refused) {
  Pods pods;
  const std::string volume = pods.volume("private");
  const VolumeEntry vnc = entry(PodVolume::kPrivate, {"uid", "virt-vnc"});
  ::mkdir((volume + "/real").c_str(), 0755);
  Fd listener = listen_at(volume + "/real/virt-vnc");
  auto refused = [&](int code) {
    auto connection = connect_socket(pods.fd(), pod(), vnc, soon());
    return !connection && connection.error().refused && connection.error().code == code &&
           connection.error().unchanged;
  };
  CHECK(::symlink("real", (volume + "/uid").c_str()) == 0);
  CHECK(refused(ELOOP));
  ::unlink((volume + "/uid").c_str());
  write_file(volume + "/uid", "");
  CHECK(refused(ENOTDIR));
  ::unlink((volume + "/uid").c_str());
  ::mkdir((volume + "/uid").c_str(), 0755);
  CHECK(::symlink("../real/virt-vnc", (volume + "/uid/virt-vnc").c_str()) == 0);
  CHECK(refused(ELOOP));
  ::unlink((volume + "/uid/virt-vnc").c_str());
  CHECK(::mkfifo((volume + "/uid/virt-vnc").c_str(), 0666) == 0);
  CHECK(refused(ENOTSOCK));
  // The mount is in a namespace of its own, so that nothing is left of it; descriptors lead to the old one.
  CHECK(in_child([&] {
    if (::unshare(CLONE_NEWNS) != 0 || ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return false;
    if (::mount((volume + "/real").c_str(), (volume + "/uid").c_str(), nullptr, MS_BIND, nullptr) != 0) return false;
    Fd directory(::open(pods.path().c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    auto connection = connect_socket(directory.get(), pod(), vnc, soon());
    return !connection && connection.error().refused && connection.error().code == EXDEV;
  }));
}

TEST(a_launcher_pod_is_no_attachment_pod) {
  Pods pods;
  CHECK(check_no_launcher_pod(pods.fd(), pod()).error().code == EPERM);
  const std::string sockets = pods.volume("sockets");
  ::rmdir(sockets.c_str());
  CHECK(check_no_launcher_pod(pods.fd(), pod()));
  CHECK(::symlink("public", sockets.c_str()) == 0);
  auto link = check_no_launcher_pod(pods.fd(), pod());
  CHECK(!link && link.error().refused);
  ::unlink(sockets.c_str());
  CHECK(connect_attachment(pods.fd(), pod(), soon()).error().code == ENOENT);
  ::mkdir(pods.volume("hotplug-disks").c_str(), 0755);
  Fd listener = listen_at(pods.volume("hotplug-disks") + "/hp.sock");
  auto foreign = connect_attachment(pods.fd(), pod(), soon());
  CHECK(!foreign && foreign.error().operation == "cgroup of listener of hp.sock");
}

TEST(migration_sockets_have_a_directory_of_their_own) {
  Pods pods;
  TemporaryDirectory outside;
  const std::string directory = pods.volume("public") + "/migrationproxy";
  const VolumeEntry proxy = entry(PodVolume::kPublic, {"migrationproxy", "u-source.sock"});
  const std::string path = directory + "/u-source.sock";
  auto made = listen_socket(pods.fd(), pod(), proxy, 107, 107);
  REQUIRE(made);
  struct stat st {};
  CHECK(::stat(directory.c_str(), &st) == 0 && st.st_uid == 107 && st.st_gid == 107 && (st.st_mode & 0777) == 0755);
  CHECK(::stat(path.c_str(), &st) == 0 && S_ISSOCK(st.st_mode) && st.st_uid == 107 && st.st_ino == made->inode.ino);
  // One that is there is left as it is.
  CHECK(::chown(directory.c_str(), 5, 6) == 0);
  auto again = listen_socket(pods.fd(), pod(), proxy, 107, 107);
  CHECK(again && ::stat(directory.c_str(), &st) == 0 && st.st_uid == 5 && st.st_gid == 6);

  // A directory with a file of the same name in the place of the directory.
  write_file(outside.path() + "/u-source.sock", "precious");
  CHECK(::rename(directory.c_str(), (directory + ".old").c_str()) == 0);
  CHECK(::symlink(outside.path().c_str(), directory.c_str()) == 0);
  CHECK(unlink_socket(pods.fd(), pod(), proxy, again->inode).error().code == ELOOP);
  auto refused = listen_socket(pods.fd(), pod(), proxy, 107, 107);
  CHECK(!refused && refused.error().refused && refused.error().code == ELOOP && refused.error().unchanged);
  CHECK(read_file(outside.path() + "/u-source.sock") == "precious");
  CHECK(type_of(directory + ".old/u-source.sock") == S_IFSOCK);

  // A link that leads nowhere is not filled in; a file is not replaced.
  ::unlink(directory.c_str());
  CHECK(::symlink((outside.path() + "/new").c_str(), directory.c_str()) == 0);
  refused = listen_socket(pods.fd(), pod(), proxy, 107, 107);
  CHECK(!refused && refused.error().refused && type_of(outside.path() + "/new") == 0);
  ::unlink(directory.c_str());
  write_file(directory, "a file");
  refused = listen_socket(pods.fd(), pod(), proxy, 107, 107);
  CHECK(!refused && refused.error().refused && refused.error().code == ENOTDIR && read_file(directory) == "a file");
  CHECK(unlink_socket(pods.fd(), pod(), proxy, again->inode).error().refused);

  // Only a directory right below the volume is made.
  auto deeper = listen_socket(pods.fd(), pod(), entry(PodVolume::kPublic, {"a", "b", "s"}), 107, 107);
  CHECK(!deeper && deeper.error().code == ENOENT && type_of(pods.volume("public") + "/a") == 0);

  // The directory is renamed back with the socket in it: that is still the inode.
  ::unlink(directory.c_str());
  CHECK(::rename((directory + ".old").c_str(), directory.c_str()) == 0);
  CHECK(*unlink_socket(pods.fd(), pod(), proxy, again->inode));
  CHECK(type_of(path) == 0 && type_of(directory) == S_IFDIR);
}

TEST(listening_replaces_only_sockets) {
  Pods pods;
  const VolumeEntry pipe = entry(PodVolume::kPublic, {kPipe});
  const std::string path = pods.volume("public") + "/" + kPipe;
  auto first = listen_socket(pods.fd(), pod(), pipe, 107, 107);
  REQUIRE(first);
  struct stat st {};
  CHECK(::stat(path.c_str(), &st) == 0 && st.st_uid == 107 && st.st_gid == 107 && (st.st_mode & 07777) == 0755);
  CHECK(st.st_ino == first->inode.ino && st.st_dev == first->inode.dev);
  auto second = listen_socket(pods.fd(), pod(), pipe, 107, 107);
  REQUIRE(second);
  CHECK(!*unlink_socket(pods.fd(), pod(), pipe, {first->inode.dev, first->inode.ino + 100000}));
  CHECK(*unlink_socket(pods.fd(), pod(), pipe, second->inode));
  CHECK(!*unlink_socket(pods.fd(), pod(), pipe, second->inode));
  write_file(path, "precious");
  auto third = listen_socket(pods.fd(), pod(), pipe, 107, 107);
  CHECK(!third && third.error().refused && third.error().unchanged && read_file(path) == "precious");
  ::unlink(path.c_str());
  CHECK(::symlink("/tmp/none", path.c_str()) == 0);
  third = listen_socket(pods.fd(), pod(), pipe, 107, 107);
  CHECK(!third && third.error().refused);
}

TEST(container_disk_of_nobody_is_not_ready) {
  Pods pods;
  auto states = [&](std::vector<std::optional<int>> indexes) {
    return container_disk_states(pods.fd(), pod(), indexes, soon());
  };
  using States = std::vector<ContainerDiskState>;
  // Nobody is asked behind the first that is not ready.
  CHECK(*states({0, 1, std::nullopt}) == States{ContainerDiskState::kAbsent});
  Fd listener = listen_at(pods.volume("container-disks") + "/disk_0.sock");
  // Listens, but from outside the pod.
  CHECK(*states({0, 1}) == States{ContainerDiskState::kNotListening});
  listener.reset();
  CHECK(*states({0}) == States{ContainerDiskState::kNotListening});
  CHECK(::symlink("disk_0.sock", (pods.volume("container-disks") + "/disk_1.sock").c_str()) == 0);
  auto link = states({1, 0});
  CHECK(!link && link.error().refused && link.error().item == 0);
  CHECK(!states({1000}));
}
