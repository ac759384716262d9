// Cgroups, programs and lists that decide about devices, on the real hierarchies.
#include "../src/device_cgroup.h"

#include <fcntl.h>
#include <linux/bpf.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>

#include <cstring>

#include "../src/device_list.h"
#include "../src/device_program.h"
#include "check.h"
#include "fixture.h"

using namespace privsep;
using namespace privsep::test;

namespace {

using Paths = std::vector<std::string>;
const std::string kCgroupfs = std::string("kubepods/burstable/pod") + kPod;
const std::string kSystemd =
    "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod0b7a1f6e_3f27_4a0e_9c39_2d6a4d1c0f11.slice";

Paths v2(const std::string& path) {
  auto paths = device_cgroup_paths("1:devices:/elsewhere\n0::/" + path + "\n", CgroupVersion::kV2, kPod);
  return paths ? *paths : Paths();
}

Paths v1(const std::string& path) {
  auto paths = device_cgroup_paths("9:devices,x:/" + path + "\n0::/\n", CgroupVersion::kV1, kPod);
  return paths ? *paths : Paths();
}

std::string mount_of(long type, std::initializer_list<const char*> places) {
  for (const char* place : places) {
    struct statfs fs {};
    if (::statfs(place, &fs) == 0 && static_cast<long>(fs.f_type) == type) return place;
  }
  return {};
}

// A cgroup of its own, made and removed with what is in it.
class Cgroup {
 public:
  explicit Cgroup(const std::string& hierarchy) : path_(hierarchy + "/privsep-test-" + std::to_string(::getpid())) {
    ::mkdir(path_.c_str(), 0755);
    directories_.push_back(Fd(::open(path_.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC)));
  }
  ~Cgroup() { ::rmdir(path_.c_str()); }
  Cgroup(const Cgroup&) = delete;
  Cgroup& operator=(const Cgroup&) = delete;

  const std::vector<Fd>& directories() const { return directories_; }
  int fd() const { return directories_[0].get(); }
  const std::string& path() const { return path_; }

  // 0, or the error of opening a node in the cgroup. ENXIO: allowed, and there is no such device.
  int open_in(const char* node) const {
    int code = -1;
    int result[2];
    if (::pipe(result) != 0) return -1;
    in_child([&] {
      write_file(path_ + "/cgroup.procs", std::to_string(::getpid()));
      Fd device(::open(node, O_RDONLY | O_NONBLOCK | O_CLOEXEC));
      int error = device.valid() ? 0 : errno;
      return ::write(result[1], &error, sizeof error) == sizeof error;
    });
    if (::read(result[0], &code, sizeof code) != sizeof code) code = -1;
    ::close(result[0]);
    ::close(result[1]);
    return code;
  }

 private:
  std::string path_;
  std::vector<Fd> directories_;
};

std::string instruction(uint8_t code, uint8_t registers, int16_t offset, int32_t immediate) {
  bpf_insn one{};
  one.code = code;
  one.dst_reg = registers & 15;
  one.src_reg = registers >> 4;
  one.off = offset;
  one.imm = immediate;
  return std::string(reinterpret_cast<const char*>(&one), sizeof one);
}

const std::string kExit = instruction(BPF_JMP | BPF_EXIT, 0, 0, 0);
std::string answer(int value) { return instruction(BPF_ALU | BPF_MOV, 0, 0, value) + kExit; }

// Allows character devices of major number 1 with one minor number.
std::string only(int minor) {
  return instruction(BPF_LDX | BPF_MEM | BPF_W, 0x12, 8, 0) + instruction(BPF_JMP | BPF_JNE, 2, 2, minor) + answer(1) +
         answer(0);
}

// Attaches as runtimes do.
bool attach(int cgroup, const std::string& instructions, uint32_t flags) {
  bpf_attr load;
  std::memset(&load, 0, sizeof load);
  load.prog_type = BPF_PROG_TYPE_CGROUP_DEVICE;
  load.insns = reinterpret_cast<uint64_t>(instructions.data());
  load.insn_cnt = static_cast<uint32_t>(instructions.size() / sizeof(bpf_insn));
  load.license = reinterpret_cast<uint64_t>("Apache");
  Fd program(static_cast<int>(::syscall(SYS_bpf, BPF_PROG_LOAD, &load, sizeof load)));
  bpf_attr attribute;
  std::memset(&attribute, 0, sizeof attribute);
  attribute.target_fd = static_cast<uint32_t>(cgroup);
  attribute.attach_bpf_fd = static_cast<uint32_t>(program.get());
  attribute.attach_type = BPF_CGROUP_DEVICE;
  attribute.attach_flags = flags;
  return program.valid() && ::syscall(SYS_bpf, BPF_PROG_ATTACH, &attribute, sizeof attribute) == 0;
}

std::vector<std::string> attached(int cgroup) {
  std::vector<std::string> found;
  auto programs = attached_device_programs(cgroup);
  if (!programs) return {"error"};
  for (const AttachedProgram& program : *programs) found.push_back(program.instructions);
  return found;
}

}  // namespace

TEST(STO_018_device_cgroup_is_the_container_s) {
  CHECK(v2(kCgroupfs + "/456") == Paths{kCgroupfs + "/456"});
  CHECK(v2(kSystemd + "/crio-456.scope") == Paths{kSystemd + "/crio-456.scope"});
  CHECK(v1(kCgroupfs + "/456") == Paths{kCgroupfs + "/456"});
  // crun has a cgroup of its own in the runtime's scope.
  CHECK((v2(kSystemd + "/crio-456.scope/container") ==
         Paths{kSystemd + "/crio-456.scope/container", kSystemd + "/crio-456.scope"}));
  CHECK(v2(kCgroupfs + "/container") == Paths{kCgroupfs + "/container"});
  CHECK(v1(kSystemd + "/crio-456.scope/container") == Paths{kSystemd + "/crio-456.scope/container"});
  // The child into which threads are put is not the container.
  CHECK(v2(kCgroupfs + "/456/housekeeping") == Paths{kCgroupfs + "/456"});
  CHECK((v2(kSystemd + "/crio-456.scope/container/housekeeping") ==
         Paths{kSystemd + "/crio-456.scope/container", kSystemd + "/crio-456.scope"}));
  CHECK(v2(kCgroupfs + "/housekeeping/x") == Paths{kCgroupfs + "/housekeeping/x"});
  CHECK(v2(kCgroupfs + "/xhousekeeping") == Paths{kCgroupfs + "/xhousekeeping"});
}

TEST(device_cgroup_of_another_pod_or_namespace_is_refused) {
  auto refused = [](const char* text, int code) {
    auto paths = device_cgroup_paths(text, CgroupVersion::kV2, kPod);
    return !paths && paths.error().code == code && paths.error().refused == (code != ENOENT);
  };
  CHECK(refused("0::/kubepods/pod11111111-2222-3333-4444-555555555555/a\n", EPERM));
  CHECK(refused("0::/user.slice\n", EPERM));
  CHECK(refused("0::/../../kubepods-pod0b7a1f6e_3f27_4a0e_9c39_2d6a4d1c0f11.slice/cri-abc.scope\n", EXDEV));
  CHECK(refused("4:devices:/kubepods/pod0b7a1f6e-3f27-4a0e-9c39-2d6a4d1c0f11/a\n", ENOENT));
  CHECK(refused("", ENOENT));
}

TEST(STO_019_device_program_takes_the_place_of_the_others) {
  std::string hierarchy = mount_of(0x63677270, {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"});
  if (hierarchy.empty()) {
    std::printf("no cgroup v2 hierarchy: device programs are not tried\n");
    return;
  }
  Cgroup cgroup(hierarchy);
  auto replace = [&](const std::string& instructions) {
    return replace_device_programs(cgroup.directories(), instructions);
  };
  // None, one, several: afterwards there is ours alone, and a second time there is nothing to do.
  for (int old = 0; old < 4; ++old) {
    for (int i = 0; i < old; ++i) CHECK(attach(cgroup.fd(), only(100 + i), BPF_F_ALLOW_MULTI));
    auto changed = replace(only(3 + old));
    CHECK(changed && *changed);
    CHECK(attached(cgroup.fd()) == std::vector<std::string>{only(3 + old)});
    auto again = replace(only(3 + old));
    CHECK(again && !*again);
  }
  // Beside ours another one: taken away, and ours stays.
  auto ours = replace(only(3));
  CHECK(ours && attach(cgroup.fd(), answer(0), BPF_F_ALLOW_MULTI) && cgroup.open_in("/dev/null") == EPERM);
  auto restored = replace(only(3));
  CHECK(restored && *restored && cgroup.open_in("/dev/null") == 0 && cgroup.open_in("/dev/zero") == EPERM);
}

TEST(STO_019_device_program_before_stays_when_ours_cannot_be_loaded) {
  std::string hierarchy = mount_of(0x63677270, {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"});
  if (hierarchy.empty()) {
    std::printf("no cgroup v2 hierarchy: device programs are not tried\n");
    return;
  }
  Cgroup cgroup(hierarchy);
  auto first = replace_device_programs(cgroup.directories(), only(3));
  REQUIRE(first && *first);
  // Not ending, and reading beyond the context.
  const std::string endless = instruction(BPF_ALU | BPF_MOV, 0, 0, 1);
  const std::string beyond = instruction(BPF_LDX | BPF_MEM | BPF_W, 0x12, 64, 0) + answer(1);
  for (const std::string& bad : {endless, beyond, std::string(), std::string(7, '\0')}) {
    auto replaced = replace_device_programs(cgroup.directories(), bad);
    CHECK(!replaced && replaced.error().unchanged);
    CHECK(attached(cgroup.fd()) == std::vector<std::string>{only(3)});
    CHECK(cgroup.open_in("/dev/null") == 0 && cgroup.open_in("/dev/zero") == EPERM);
  }
}

TEST(device_program_of_a_cgroup_for_one_program_is_replaced) {
  std::string hierarchy = mount_of(0x63677270, {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"});
  if (hierarchy.empty()) {
    std::printf("no cgroup v2 hierarchy: device programs are not tried\n");
    return;
  }
  for (uint32_t flags : {0u, static_cast<uint32_t>(BPF_F_ALLOW_OVERRIDE)}) {
    Cgroup cgroup(hierarchy);
    REQUIRE(attach(cgroup.fd(), answer(0), flags));
    auto replaced = replace_device_programs(cgroup.directories(), only(3));
    CHECK(replaced && *replaced);
    CHECK(attached(cgroup.fd()) == std::vector<std::string>{only(3)});
  }
}

TEST(STO_018_device_list_is_changed_in_order) {
  std::string hierarchy = mount_of(0x27e0eb, {"/sys/fs/cgroup/devices"});
  if (hierarchy.empty()) {
    std::printf("no cgroup v1 hierarchy of devices: device lists are not tried\n");
    return;
  }
  Cgroup cgroup(hierarchy);
  auto before = read_device_list(cgroup.fd());
  CHECK(before && *before == "a *:* rwm\n");
  auto changed = change_device_list(cgroup.fd(), {{false, "a *:* rwm"}, {true, "c 1:3 rw"}, {true, "b 8:16 rwm"}});
  CHECK(changed);
  auto after = read_device_list(cgroup.fd());
  CHECK(after && *after == "c 1:3 rw\nb 8:16 rwm\n");
  CHECK(cgroup.open_in("/dev/null") == 0 && cgroup.open_in("/dev/zero") == EPERM);
  // Refused before anything is written.
  auto bad = change_device_list(cgroup.fd(), {{false, "c 1:3 rw"}, {true, "c 1:5 rw\nc 1:7 rw"}});
  CHECK(!bad && bad.error().refused && bad.error().unchanged);
  // The kernel says no to the second.
  bad = change_device_list(cgroup.fd(), {{true, "c 1:5 rw"}, {true, "c 1 7 rw"}});
  CHECK(!bad && !bad.error().refused && !bad.error().unchanged);
  after = read_device_list(cgroup.fd());
  CHECK(after && after->find("c 1:3 rw\n") == 0);
}
