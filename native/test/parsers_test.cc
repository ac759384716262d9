// Parsers of text and bytes from outside.
#include <sys/inotify.h>
#include <sys/sysmacros.h>

#include <cstring>

#include "../src/capabilities.h"
#include "../src/cgroup.h"
#include "../src/device_numbers.h"
#include "../src/inotify.h"
#include "../src/hotplug.h"
#include "../src/mountinfo.h"
#include "../src/pod.h"
#include "check.h"
#include "fixture.h"

using namespace privsep;
using test::kPod;

TEST(pod_uid_is_a_canonical_lower_case_uuid) {
  CHECK(PodUid::parse(kPod));
  for (const char* bad : {"", "0b7a1f6e-3f27-4a0e-9c39-2d6a4d1c0f1", "0b7a1f6e-3f27-4a0e-9c39-2d6a4d1c0f111",
                          "0B7A1F6E-3f27-4a0e-9c39-2d6a4d1c0f11", "0b7a1f6e_3f27-4a0e-9c39-2d6a4d1c0f11",
                          "0b7a1f6e-3f27-4a0e-9c39-2d6a4d1c0f/1", "../../../../../../../../../../../../",
                          "0b7a1f6e3f274a0e9c392d6a4d1c0f110000"}) {
    auto uid = PodUid::parse(bad);
    CHECK(!uid && uid.error().refused && uid.error().code == EINVAL);
  }
  CHECK(!PodUid::parse(std::string_view("0b7a1f6e-3f27-4a0e-9c39-2d6a4d1c0f1\0", 36)));
}

TEST(disk_names_are_exact) {
  CHECK(parse_disk_name("disk_0.sock", ".sock") == 0);
  CHECK(parse_disk_name("disk_7.img", ".img") == 7);
  CHECK(parse_disk_name("disk_999.img", ".img") == 999);
  for (const char* bad : {"disk_.img", "disk_1000.img", "disk_01.img", "disk_-1.img", "disk_1.img ", "xdisk_1.img",
                          "disk_1.sock", "disk_1", "", "disk_+1.img", "disk_1/.img"}) {
    CHECK(parse_disk_name(bad, ".img") == -1);
  }
  CHECK(disk_name(12, ".img") == "disk_12.img");
}

TEST(file_names_are_plain) {
  CHECK(check_file_name("vif-cache-eth0.json"));
  for (const char* bad : {"", ".", "..", ".hidden", "a/b", "a b", "a\n"}) CHECK(!check_file_name(bad));
  CHECK(!check_file_name(std::string(256, 'a')));
  CHECK(!check_file_name(std::string_view("a\0b", 3)));
}

TEST(volumes_are_listed) {
  for (const char* name : {"sockets", "public", "private", "container-disks", "libvirt-runtime", "ephemeral-disks",
                           "hotplug-disks", "virtiofs-containers"}) {
    auto volume = parse_volume(name);
    CHECK(volume && std::string(volume_name(*volume)) == name);
  }
  for (const char* bad : {"", "..", "kubernetes", "sockets/../private"}) CHECK(!parse_volume(bad));
}

TEST(cgroup_of_the_pod_in_both_drivers) {
  const std::string other = "11111111-2222-3333-4444-555555555555";
  CHECK(cgroup_is_in_pod("0::/kubepods/burstable/pod0b7a1f6e-3f27-4a0e-9c39-2d6a4d1c0f11/abc\n", kPod));
  CHECK(cgroup_is_in_pod("0::/kubepods.slice/kubepods-burstable.slice/"
                         "kubepods-burstable-pod0b7a1f6e_3f27_4a0e_9c39_2d6a4d1c0f11.slice/cri-containerd-abc.scope\n",
                         kPod));
  // Guaranteed pods have no class in between; a private cgroup namespace shows a relative path.
  CHECK(cgroup_is_in_pod("0::/../../kubepods-pod0b7a1f6e_3f27_4a0e_9c39_2d6a4d1c0f11.slice/cri-abc.scope", kPod));
  CHECK(cgroup_is_in_pod("4:memory:/kubepods/pod0b7a1f6e-3f27-4a0e-9c39-2d6a4d1c0f11\n1:cpu:/\n0::/\n", kPod));
  CHECK(!cgroup_is_in_pod("0::/kubepods/burstable/pod" + other + "/abc\n", kPod));
  CHECK(!cgroup_is_in_pod("0::/\n", kPod));
  CHECK(!cgroup_is_in_pod("", kPod));
}

TEST(cgroup_names_below_the_pod_do_not_count) {
  const std::string other = "11111111-2222-3333-4444-555555555555";
  CHECK(!cgroup_is_in_pod("0::/kubepods/pod" + other + "/ctr/pod" + kPod + "\n", kPod));
  CHECK(cgroup_is_in_pod("0::/kubepods/pod" + std::string(kPod) + "/ctr/pod" + other + "\n", kPod));
  // One hierarchy of another pod is enough to refuse.
  CHECK(!cgroup_is_in_pod("2:cpu:/kubepods/pod" + std::string(kPod) + "\n0::/kubepods/pod" + other + "\n", kPod));
}

TEST(cgroup_components_are_whole) {
  for (const char* bad : {"0::/xpod0b7a1f6e-3f27-4a0e-9c39-2d6a4d1c0f11", "0::/pod0b7a1f6e-3f27-4a0e-9c39-2d6a4d1c0f11x",
                          "0::/pod0b7a1f6e_3f27_4a0e_9c39_2d6a4d1c0f11", "0::pod", "0:/pod", "nonsense", ":", "::",
                          "0::/kubepods-xpod0b7a1f6e_3f27_4a0e_9c39_2d6a4d1c0f11.slice",
                          "0::/kubepods-pod0b7a1f6e-3f27-4a0e-9c39-2d6a4d1c0f11.slice",
                          "0:name=/pod0b7a1f6e-3f27-4a0e-9c39-2d6a4d1c0f11:/"}) {
    CHECK(!cgroup_is_in_pod(bad, kPod));
  }
}

TEST(thread_status_needs_every_field) {
  const std::string good =
      "Name:\tnode\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\nCapInh:\t0000000000000000\nCapPrm:\t00000000002c100f\n"
      "CapEff:\t0000000000000000\nCapBnd:\t0000000000000000\nCapAmb:\t0000000000000000\nNoNewPrivs:\t1\nSeccomp:\t2\n";
  auto status = parse_thread_status(good);
  REQUIRE(status);
  CHECK(status->uids[3] == 4 && status->gids[0] == 5 && status->permitted == 0x2c100f);
  CHECK(status->no_new_privs && status->seccomp == 2);
  for (const char* field : {"Uid", "Gid", "CapInh", "CapPrm", "CapEff", "CapAmb", "NoNewPrivs", "Seccomp"}) {
    std::string without = good;
    without.replace(without.find(std::string("\n") + field + ":") + 1, 1, "X");
    CHECK(!parse_thread_status(without));
  }
  CHECK(!parse_thread_status("\nUid:\t1\t2\t3\n"));
  CHECK(!parse_thread_status(""));
}

static std::string event_bytes(int wd, uint32_t mask, const std::string& name, uint32_t length) {
  inotify_event header{};
  header.wd = wd;
  header.mask = mask;
  header.len = length;
  std::string bytes(reinterpret_cast<const char*>(&header), sizeof header);
  bytes += name;
  bytes.resize(sizeof header + length, '\0');
  return bytes;
}

TEST(inotify_events_end_where_the_buffer_does) {
  std::string buffer = event_bytes(1, IN_CREATE, "launcher-sock", 16) + event_bytes(-1, IN_Q_OVERFLOW, "", 0);
  auto events = parse_inotify(buffer);
  REQUIRE(events.size() == 2);
  CHECK(events[0].wd == 1 && events[0].name == "launcher-sock" && events[1].wd == -1);
  // A name without a terminator, a length beyond the end, half a header.
  CHECK(parse_inotify(event_bytes(1, IN_CREATE, "abcd", 4))[0].name == "abcd");
  std::string long_name = event_bytes(1, IN_CREATE, "abcd", 4);
  uint32_t beyond = 4096;
  std::memcpy(&long_name[offsetof(inotify_event, len)], &beyond, sizeof beyond);
  CHECK(parse_inotify(long_name).empty());
  CHECK(parse_inotify(buffer.substr(0, 7)).empty());
}

TEST(file_systems_are_found_in_mountinfo) {
  constexpr std::string_view text =
      "23 26 0:6 / /dev rw,relatime shared:2 master:1 - devtmpfs devtmpfs rw,size=12334416k\n"
      "24 23 0:21 / /dev/pts rw - devpts devpts rw\n";
  CHECK(find_filesystem(text, "devtmpfs") == makedev(0, 6));
  CHECK(find_filesystem(text, "devpts") == makedev(0, 21));
  CHECK(find_filesystem(text, "tmpfs") == 0);
  CHECK(filesystem_of_mount(text, 23) == "devtmpfs");
  CHECK(filesystem_of_mount(text, 24) == "devpts");
  CHECK(filesystem_of_mount(text, 2) == "" && filesystem_of_mount(text, 26) == "");
  for (std::string_view bad : {"", "\n\n", "23", "23 26 0:6 / /dev rw - ", "23 26 x:6 / /dev rw - devtmpfs d rw",
                               "23 26 0: / /dev rw - devtmpfs d rw", "23 26 0:6", "- - - - - -"}) {
    CHECK(find_filesystem(bad, "devtmpfs") == 0);
  }
  for (std::string_view bad : {"", "23", "23 26 0:6 / /dev rw - ", "x23 26 0:6 / /dev rw - tmpfs d rw"}) {
    CHECK(filesystem_of_mount(bad, 23) == "");
  }
}

TEST(volumes_are_dns_labels) {
  const std::string longest(63, 'a');
  for (const std::string& name : {std::string("data"), std::string("0-9"), longest}) {
    CHECK(check_volume_name(name));
    CHECK(check_plug_name(name) && check_plug_name(name + ".img"));
  }
  for (const std::string& name : {std::string(), std::string("."), std::string(".."), std::string("a/b"),
                                  std::string("A"), std::string("-a"), std::string("a-"), std::string("a.b"),
                                  std::string("a\0b", 3), longest + "a"}) {
    CHECK(!check_volume_name(name));
    CHECK(!check_plug_name(name) && !check_plug_name(name + ".img"));
  }
  CHECK(!check_volume_name("data.img") && !check_plug_name(".img") && !check_plug_name("hp.sock"));
}

TEST(device_numbers_are_found_by_name) {
  const std::string misc = "234 btrfs-control\n 57 sev\n  9 sev-guest\n232 kvm\n";
  CHECK(find_misc_minor(misc, "sev") == 57u);
  CHECK(find_misc_minor(misc, "kvm") == 232u);
  for (const char* absent : {"", "se", "mshv", "57 sev", "btrfs"}) CHECK(!find_misc_minor(misc, absent));
  for (const char* odd : {"sev", "x sev", "-1 sev", "99999999999 sev", "57sev", "57  sev", "57 sev "}) {
    CHECK(!find_misc_minor(odd, "sev"));
  }
  const std::string devices = "Character devices:\n  1 mem\n511 vfio\n\nBlock devices:\n  7 loop\n";
  CHECK(find_character_major(devices, "vfio") == 511u);
  CHECK(!find_character_major(devices, "loop"));
  CHECK(!find_character_major("511 vfio\n", "vfio"));
}
