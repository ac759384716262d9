// What is in a pod: its state as directories show it, the marker, and files in its volumes.
#include <fcntl.h>
#include <sys/stat.h>

#include <atomic>
#include <thread>

#include "../src/directory.h"
#include "../src/pod_sockets.h"
#include "../src/volume_file.h"
#include "check.h"
#include "fixture.h"

using namespace privsep;
using namespace privsep::test;

static PodUid pod() { return *PodUid::parse(kPod); }
static Deadline soon() { return Deadline::after_ms(2000); }

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

TEST(volume_files_are_replaced_whole) {
  Pods pods;
  TemporaryDirectory outside;
  const std::string canary = outside.path() + "/canary";
  const std::string path = pods.volume("private") + "/vif-cache-eth0.json";
  const FileOwner owner{107, 107, 0644};
  auto write = [&](const std::string& content) {
    return write_volume_file(pods.fd(), pod(), PodVolume::kPrivate, "vif-cache-eth0.json", content, owner);
  };
  CHECK(*write("one") == WriteOutcome::kCreated);
  CHECK(*write("one") == WriteOutcome::kEqual);
  CHECK(*write("two") == WriteOutcome::kReplaced && read_file(path) == "two");
  struct stat st {};
  CHECK(::stat(path.c_str(), &st) == 0 && st.st_uid == 107 && (st.st_mode & 07777) == 0644);

  write_file(canary, "canary");
  ::unlink(path.c_str());
  CHECK(::symlink(canary.c_str(), path.c_str()) == 0);
  // As is what stands in the place of the temporary file, from a call that was killed or from the pod.
  const std::string temporary = pods.volume("private") + "/.vif-cache-eth0.json.new";
  CHECK(::symlink(canary.c_str(), temporary.c_str()) == 0);
  CHECK(*write("three") == WriteOutcome::kReplaced && read_file(path) == "three" && read_file(canary) == "canary");
  CHECK(::lstat(temporary.c_str(), &st) != 0);
  CHECK(::lstat(path.c_str(), &st) == 0 && S_ISREG(st.st_mode));

  ::unlink(path.c_str());
  CHECK(::link(canary.c_str(), path.c_str()) == 0);
  CHECK(*write("canary") == WriteOutcome::kReplaced && read_file(canary) == "canary");
  CHECK(::stat(canary.c_str(), &st) == 0 && st.st_uid == 0 && st.st_nlink == 1);

  ::unlink(path.c_str());
  CHECK(::mkfifo(path.c_str(), 0666) == 0);
  CHECK(*write("four") == WriteOutcome::kReplaced && read_file(path) == "four");
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
