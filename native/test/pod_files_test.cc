// Sockets, marker and files in a pod's volumes.
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <atomic>
#include <thread>

#include "../src/directory.h"
#include "../src/kernel.h"
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

static VolumeEntry entry(PodVolume volume, const std::vector<std::string>& path) {
  return *VolumeEntry::parse(volume, path);
}

static mode_t type_of(const std::string& path) {
  struct stat st {};
  return ::lstat(path.c_str(), &st) == 0 ? st.st_mode & S_IFMT : 0;
}

TEST(entries_of_volumes_are_made_of_names) {
  const std::string longest(255, 'a');
  auto one = VolumeEntry::parse(PodVolume::kPublic, {"x"});
  CHECK(one && one->directory == "." && one->name == "x" && one->path == "x");
  auto four = VolumeEntry::parse(PodVolume::kEphemeralDisks, {"cloud-init-data", "ns", "vm.1", longest});
  CHECK(four && four->directory == "cloud-init-data/ns/vm.1" && four->name == longest);
  CHECK(four->path == "cloud-init-data/ns/vm.1/" + longest);
  for (const std::vector<std::string>& wrong : std::vector<std::vector<std::string>>{
           {}, {"a", "b", "c", "d", "e"}, {""}, {"."}, {".."}, {"a", "..", "b"}, {"a/b"}, {"/a"}, {".a"},
           {std::string("a\0b", 3)}, {longest + "a"}, {"a", "b c"}}) {
    auto entry = VolumeEntry::parse(PodVolume::kPublic, wrong);
    CHECK(!entry && entry.error().refused && entry.error().code == EINVAL);
  }
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

TEST(sizes_are_those_of_regular_files_in_the_volume) {
  Pods pods;
  TemporaryDirectory outside;
  write_file(outside.path() + "/v.iso", "outside");
  const std::string directory = pods.volume("private") + "/secret-disks";
  const VolumeEntry iso = entry(PodVolume::kPrivate, {"secret-disks", "v.iso"});
  auto size = [&] { return volume_file_size(pods.fd(), pod(), iso); };
  CHECK(size().error().code == ENOENT && !size().error().refused);
  ::mkdir(directory.c_str(), 0700);
  write_file(directory + "/v.iso", "12345");
  CHECK(*size() == 5);
  ::unlink((directory + "/v.iso").c_str());
  CHECK(::mkfifo((directory + "/v.iso").c_str(), 0666) == 0);
  CHECK(size().error().refused && size().error().code == EINVAL);
  ::unlink((directory + "/v.iso").c_str());
  ::mkdir((directory + "/v.iso").c_str(), 0755);
  CHECK(size().error().refused);
  ::rmdir((directory + "/v.iso").c_str());
  CHECK(::symlink((outside.path() + "/v.iso").c_str(), (directory + "/v.iso").c_str()) == 0);
  CHECK(size().error().code == ELOOP);
  ::unlink((directory + "/v.iso").c_str());
  ::rmdir(directory.c_str());
  CHECK(::symlink(outside.path().c_str(), directory.c_str()) == 0);
  CHECK(size().error().code == ELOOP && size().error().refused);
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

TEST(volume_files_are_removed_and_nothing_else) {
  Pods pods;
  TemporaryDirectory outside;
  const std::string canary = outside.path() + "/canary";
  const std::string path = pods.volume("private") + "/vif-cache-eth0.json";
  write_file(canary, "canary");
  auto remove = [&](const std::string& name) {
    return remove_volume_file(pods.fd(), pod(), PodVolume::kPrivate, name);
  };
  struct stat st {};
  write_file(path, "{}");
  CHECK(*remove("vif-cache-eth0.json") && ::lstat(path.c_str(), &st) != 0);
  CHECK(!*remove("vif-cache-eth0.json"));
  CHECK(::symlink(canary.c_str(), path.c_str()) == 0);
  CHECK(*remove("vif-cache-eth0.json") && ::lstat(path.c_str(), &st) != 0);
  ::mkdir(path.c_str(), 0755);
  auto directory = remove("vif-cache-eth0.json");
  CHECK(!directory && directory.error().unchanged && ::lstat(path.c_str(), &st) == 0);
  CHECK(remove("../canary").error().refused);
  CHECK(read_file(canary) == "canary");

  ::rmdir(path.c_str());
  ::rmdir(pods.volume("private").c_str());
  CHECK(::symlink(outside.path().c_str(), pods.volume("private").c_str()) == 0);
  CHECK(remove("canary").error().refused && read_file(canary) == "canary");
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
