#include "device_program.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

namespace privsep {

namespace {

// The kernel attaches no more to one cgroup (BPF_CGROUP_MAX_PROGS).
constexpr uint32_t kMaxAttached = 64;
constexpr uint32_t kMaxEffective = 1024;
// Somebody else attaches or detaches at the same time.
constexpr int kAttempts = 8;

using Tag = std::array<uint8_t, BPF_TAG_SIZE>;

int bpf(int command, bpf_attr& attribute) {
  return static_cast<int>(::syscall(SYS_bpf, command, &attribute, sizeof attribute));
}

// The kernel reads an attribute up to its size and wants zeros in what it does not know.
bpf_attr cleared() {
  bpf_attr attribute;
  std::memset(&attribute, 0, sizeof attribute);
  return attribute;
}

template <typename T>
uint64_t address_of(T* pointer) {
  return reinterpret_cast<uint64_t>(pointer);
}

Result<Fd> load(const std::string& instructions) {
  if (instructions.empty() || instructions.size() % sizeof(bpf_insn) != 0 || instructions.size() > kMaxProgramBytes) {
    return Error::refusal(EINVAL, "device program");
  }
  constexpr char license[] = "Apache";
  constexpr char name[] = "privsep_devices";
  static_assert(sizeof name <= BPF_OBJ_NAME_LEN);
  bpf_attr attribute = cleared();
  attribute.prog_type = BPF_PROG_TYPE_CGROUP_DEVICE;
  attribute.expected_attach_type = BPF_CGROUP_DEVICE;
  attribute.insns = address_of(instructions.data());
  attribute.insn_cnt = static_cast<uint32_t>(instructions.size() / sizeof(bpf_insn));
  attribute.license = address_of(license);
  std::memcpy(attribute.prog_name, name, sizeof name);
  Fd program(bpf(BPF_PROG_LOAD, attribute));
  if (!program.valid()) return Error::last("load device program");
  return program;
}

// Nothing when the program is gone.
Result<std::optional<Fd>> open_program(uint32_t id) {
  bpf_attr attribute = cleared();
  attribute.prog_id = id;
  Fd program(bpf(BPF_PROG_GET_FD_BY_ID, attribute));
  if (program.valid()) return std::optional<Fd>(std::move(program));
  if (errno == ENOENT) return std::optional<Fd>();
  return Error::last("open device program " + std::to_string(id));
}

Status get_info(int program, bpf_prog_info* info) {
  bpf_attr attribute = cleared();
  attribute.info.bpf_fd = static_cast<uint32_t>(program);
  attribute.info.info_len = sizeof *info;
  attribute.info.info = address_of(info);
  if (bpf(BPF_OBJ_GET_INFO_BY_FD, attribute) != 0) return Error::last("look at device program");
  return ok();
}

struct Attached {
  std::vector<uint32_t> ids;
  uint32_t flags = 0;
};

// `flags`: BPF_F_QUERY_EFFECTIVE for those of the cgroups above it, too.
Result<Attached> query(int cgroup, uint32_t flags = 0) {
  const uint32_t limit = flags == 0 ? kMaxAttached : kMaxEffective;
  Attached attached;
  attached.ids.resize(limit);
  bpf_attr attribute = cleared();
  attribute.query.target_fd = static_cast<uint32_t>(cgroup);
  attribute.query.attach_type = BPF_CGROUP_DEVICE;
  attribute.query.prog_ids = address_of(attached.ids.data());
  attribute.query.query_flags = flags;
  attribute.query.prog_cnt = limit;
  if (bpf(BPF_PROG_QUERY, attribute) != 0) return Error::last("list device programs");
  attached.ids.resize(std::min(attribute.query.prog_cnt, limit));
  attached.flags = attribute.query.attach_flags;
  return attached;
}

// `replaced`: the one whose place it takes, -1 for a place beside the others.
int attach(int cgroup, int program, uint32_t flags, int replaced) {
  bpf_attr attribute = cleared();
  attribute.target_fd = static_cast<uint32_t>(cgroup);
  attribute.attach_bpf_fd = static_cast<uint32_t>(program);
  attribute.attach_type = BPF_CGROUP_DEVICE;
  attribute.attach_flags = flags;
  if (replaced >= 0) {
    attribute.attach_flags |= BPF_F_REPLACE;
    attribute.replace_bpf_fd = static_cast<uint32_t>(replaced);
  }
  return bpf(BPF_PROG_ATTACH, attribute) == 0 ? 0 : errno;
}

int detach(int cgroup, int program) {
  bpf_attr attribute = cleared();
  attribute.target_fd = static_cast<uint32_t>(cgroup);
  attribute.attach_bpf_fd = static_cast<uint32_t>(program);
  attribute.attach_type = BPF_CGROUP_DEVICE;
  return bpf(BPF_PROG_DETACH, attribute) == 0 ? 0 : errno;
}

struct Program {
  Fd fd;
  uint32_t id = 0;
  Tag tag{};
};

// One of the cgroup's programs has these instructions and is alone: the kernel's digest of them says so.
Result<bool> is_alone(const Attached& attached, const Program& program) {
  if (attached.ids.size() != 1) return false;
  if (attached.ids[0] == program.id) return true;
  auto other = open_program(attached.ids[0]);
  if (!other) return other.error();
  if (!*other) return false;
  bpf_prog_info info{};
  auto got = get_info((*other)->get(), &info);
  if (!got) return got.error();
  return std::equal(program.tag.begin(), program.tag.end(), info.tag);
}

// One step towards being alone. What another process takes away in between is left to the next attempt.
Status advance(int cgroup, const Program& program, const Attached& attached) {
  bool multiple = attached.ids.empty() || (attached.flags & BPF_F_ALLOW_MULTI) != 0;
  // Without the flag there is room for one program, and attaching replaces it.
  uint32_t flags = multiple ? BPF_F_ALLOW_MULTI : attached.flags & BPF_F_ALLOW_OVERRIDE;
  bool there = std::find(attached.ids.begin(), attached.ids.end(), program.id) != attached.ids.end();
  std::vector<Fd> old;
  for (uint32_t id : attached.ids) {
    if (id == program.id) continue;
    auto other = open_program(id);
    if (!other) return other.error();
    if (*other) old.push_back(std::move(**other));
  }
  if (!there) {
    bool one = multiple && old.size() == 1 && attached.ids.size() == 1;
    int code = attach(cgroup, program.fd.get(), flags, one ? old[0].get() : -1);
    if (code != 0 && code != ENOENT) return Error::of(code, "attach device program");
    if (one || !multiple || code != 0) return ok();
  }
  for (const Fd& other : old) {
    int code = detach(cgroup, other.get());
    if (code != 0 && code != ENOENT) return Error::of(code, "detach device program");
  }
  return ok();
}

Result<bool> make_alone(int cgroup, const Program& program) {
  Error failure;
  bool changed = false;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    auto attached = query(cgroup);
    auto alone = attached ? is_alone(*attached, program) : Result<bool>(attached.error());
    if (alone && *alone) return changed;
    auto advanced = alone ? advance(cgroup, program, *attached) : Status(alone.error());
    if (!advanced) {
      failure = advanced.error();
      break;
    }
    changed = true;
  }
  if (failure.code == 0) failure = Error::of(EBUSY, "replace device programs");
  failure.unchanged = !changed;
  return failure;
}

Result<std::vector<AttachedProgram>> read_programs(const std::vector<uint32_t>& ids) {
  std::vector<AttachedProgram> programs;
  for (uint32_t id : ids) {
    auto fd = open_program(id);
    if (!fd) return fd.error();
    if (!*fd) continue;
    bpf_prog_info info{};
    auto got = get_info((*fd)->get(), &info);
    if (!got) return got.error();
    AttachedProgram program;
    program.id = id;
    // Empty where the kernel hides it.
    program.instructions.resize(std::min<size_t>(info.xlated_prog_len, kMaxProgramBytes));
    bpf_prog_info again{};
    again.xlated_prog_len = static_cast<uint32_t>(program.instructions.size());
    again.xlated_prog_insns = address_of(program.instructions.data());
    got = get_info((*fd)->get(), &again);
    if (!got) return got.error();
    if (again.xlated_prog_insns == 0) program.instructions.clear();
    programs.push_back(std::move(program));
  }
  return programs;
}

}  // namespace

Result<bool> replace_device_programs(const std::vector<Fd>& cgroups, const std::string& instructions) {
  auto loaded = load(instructions);
  if (!loaded) return loaded.error();
  Program program;
  program.fd = std::move(*loaded);
  bpf_prog_info info{};
  auto got = get_info(program.fd.get(), &info);
  if (!got) return got.error();
  program.id = info.id;
  std::copy(std::begin(info.tag), std::end(info.tag), program.tag.begin());
  bool changed = false;
  for (const Fd& cgroup : cgroups) {
    auto replaced = make_alone(cgroup.get(), program);
    if (!replaced) {
      replaced.error().unchanged = replaced.error().unchanged && !changed;
      return replaced.error();
    }
    changed = changed || *replaced;
  }
  return changed;
}

Result<std::vector<AttachedProgram>> attached_device_programs(int cgroup) {
  auto attached = query(cgroup);
  if (!attached) return attached.error();
  return read_programs(attached->ids);
}

Result<std::vector<AttachedProgram>> effective_device_programs(int cgroup) {
  auto effective = query(cgroup, BPF_F_QUERY_EFFECTIVE);
  if (!effective) return effective.error();
  return read_programs(effective->ids);
}

}  // namespace privsep
