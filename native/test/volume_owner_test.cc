// Giving volumes away, where this kernel decides about it and where a server does.
#include "../src/volume_owner.h"

#include <fcntl.h>
#include <linux/fuse.h>
#include <linux/magic.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <sys/vfs.h>

#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "../src/fd.h"
#include "check.h"
#include "fixture.h"

using namespace privsep;
using namespace privsep::test;

namespace {

constexpr uid_t kQemu = 107;

// A file system of one empty directory, root's, whose server answers every change of it with an error.
class ServedDirectory {
 public:
  explicit ServedDirectory(int refusal) : refusal_(refusal), fuse_(::open("/dev/fuse", O_RDWR | O_CLOEXEC)) {
    std::string options = "fd=" + std::to_string(fuse_.get()) + ",rootmode=40000,user_id=0,group_id=0";
    mounted_ = ::mount("privsep-test", place_.path().c_str(), "fuse", 0, options.c_str()) == 0;
    if (mounted_) server_ = std::thread([this] { serve(); });
  }
  ~ServedDirectory() {
    if (!mounted_) return;
    ::umount2(place_.path().c_str(), MNT_DETACH);
    server_.join();
  }
  ServedDirectory(const ServedDirectory&) = delete;
  ServedDirectory& operator=(const ServedDirectory&) = delete;

  bool mounted() const { return mounted_; }
  const std::string& path() const { return place_.path(); }

 private:
  // Until it is unmounted.
  void serve() {
    std::vector<char> request(FUSE_MIN_READ_BUFFER + 4096);
    for (;;) {
      ssize_t length = ::read(fuse_.get(), request.data(), request.size());
      if (length < 0 && errno == EINTR) continue;
      if (length < static_cast<ssize_t>(sizeof(fuse_in_header))) return;
      fuse_in_header header{};
      std::memcpy(&header, request.data(), sizeof header);
      if (header.opcode == FUSE_INIT) {
        fuse_init_out init{};
        init.major = FUSE_KERNEL_VERSION;
        init.minor = FUSE_KERNEL_MINOR_VERSION;
        init.max_write = 4096;
        answer(header, 0, &init, sizeof init);
      } else if (header.opcode == FUSE_GETATTR) {
        fuse_attr_out out{};
        out.attr.ino = FUSE_ROOT_ID;
        out.attr.mode = S_IFDIR | 0755;
        out.attr.nlink = 2;
        answer(header, 0, &out, sizeof out);
      } else if (header.opcode == FUSE_STATFS) {
        fuse_statfs_out out{};
        answer(header, 0, &out, sizeof out);
      } else if (header.opcode != FUSE_FORGET) {
        answer(header, header.opcode == FUSE_SETATTR ? refusal_ : ENOSYS, nullptr, 0);
      }
    }
  }

  void answer(const fuse_in_header& request, int error, void* body, size_t size) const {
    fuse_out_header header{};
    header.len = static_cast<uint32_t>(sizeof header + size);
    header.error = -error;
    header.unique = request.unique;
    iovec parts[] = {{&header, sizeof header}, {body, size}};
    CHECK(::writev(fuse_.get(), parts, 2) == static_cast<ssize_t>(header.len));
  }

  int refusal_;
  TemporaryDirectory place_;
  Fd fuse_;
  bool mounted_ = false;
  std::thread server_;
};

Fd open_path(const std::string& path) { return Fd(::open(path.c_str(), O_PATH | O_CLOEXEC)); }

}  // namespace

TEST(volume_owner_is_left_to_servers) {
  for (unsigned long type : {0x6969ul, 0xff534d42ul, 0xfe534d42ul, 0x517bul, 0x00c36400ul, 0x65735546ul}) {
    CHECK(others_decide(type));
  }
  constexpr unsigned long kLocal[] = {EXT4_SUPER_MAGIC, XFS_SUPER_MAGIC, BTRFS_SUPER_MAGIC, TMPFS_MAGIC,
                                      OVERLAYFS_SUPER_MAGIC};
  for (unsigned long type : kLocal) {
    CHECK(!others_decide(type));
  }
}

TEST(volume_owner_stays_where_a_server_refuses) {
  for (int refusal : {EPERM, EACCES}) {
    ServedDirectory served(refusal);
    REQUIRE(served.mounted());
    Fd directory = open_path(served.path());
    auto given = give_away(directory.get(), kQemu, kQemu, "volume");
    CHECK(given && *given == Given::kKept);
    given = give_away(directory.get(), 0, 0, "volume");
    CHECK(given && *given == Given::kAlready);
  }
  ServedDirectory served(EIO);
  REQUIRE(served.mounted());
  Fd directory = open_path(served.path());
  auto given = give_away(directory.get(), kQemu, kQemu, "volume");
  CHECK(!given && given.error().code == EIO);
}

TEST(volume_owner_that_the_kernel_refuses_is_an_error) {
  TemporaryDirectory place;
  Fd directory = open_path(place.path());
  // Of this thread alone, which is not root then.
  std::thread([&] {
    CHECK(::syscall(SYS_setresuid, kQemu, kQemu, kQemu) == 0);
    auto given = give_away(directory.get(), kQemu, kQemu, "volume");
    CHECK(!given && given.error().code == EPERM && given.error().operation == "fchownat volume");
  }).join();
  auto given = give_away(directory.get(), kQemu, kQemu, "volume");
  CHECK(given && *given == Given::kChanged);
}
