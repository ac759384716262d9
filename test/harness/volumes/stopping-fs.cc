// A file system with one file, disk.img, whose server stops answering when it is told to, as that of a claim on a network
// may: whoever asks it then waits in the kernel until the server ends.
// usage: stopping-fs MOUNTPOINT; says "ready" once it is mounted. After a line on standard input it says "silent", and then
// "asked" for each request that it leaves without an answer.
#include <fcntl.h>
#include <linux/fuse.h>
#include <poll.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>

namespace {

constexpr uint64_t kRoot = FUSE_ROOT_ID;
constexpr uint64_t kImage = 2;
constexpr const char* kImageName = "disk.img";
constexpr size_t kBufferSize = 1 << 17;

uint32_t owner[2][2] = {};  // uid and gid of the root and of the image

int fail(const char* what) {
  std::fprintf(stderr, "stopping-fs: %s: %s\n", what, std::strerror(errno));
  return 1;
}

void say(const char* word) {
  std::printf("%s\n", word);
  std::fflush(stdout);
}

// Never valid for any time, so that whoever wants to know asks.
fuse_attr attributes(uint64_t node) {
  fuse_attr attr{};
  attr.ino = node;
  attr.mode = node == kRoot ? S_IFDIR | 0755 : S_IFREG | 0644;
  attr.nlink = 1;
  attr.uid = owner[node - kRoot][0];
  attr.gid = owner[node - kRoot][1];
  attr.blksize = 4096;
  return attr;
}

void answer(int device, uint64_t unique, int error, const void* body = nullptr, size_t size = 0) {
  fuse_out_header header{};
  header.len = static_cast<uint32_t>(sizeof header + size);
  header.error = -error;
  header.unique = unique;
  const iovec parts[] = {{&header, sizeof header}, {const_cast<void*>(body), size}};
  // Nobody waits any more for what was interrupted.
  (void)!::writev(device, parts, 2);
}

void answer_attributes(int device, const fuse_in_header& request) {
  fuse_attr_out out{};
  out.attr = attributes(request.nodeid);
  answer(device, request.unique, 0, &out, sizeof out);
}

void serve(int device, const fuse_in_header& request, const char* body) {
  switch (request.opcode) {
    case FUSE_INIT: {
      fuse_init_out out{};
      out.major = FUSE_KERNEL_VERSION;
      out.minor = 31;
      out.max_write = 4096;
      return answer(device, request.unique, 0, &out, sizeof out);
    }
    case FUSE_LOOKUP: {
      if (request.nodeid != kRoot || std::strcmp(body, kImageName) != 0) return answer(device, request.unique, ENOENT);
      fuse_entry_out out{};
      out.nodeid = kImage;
      out.attr = attributes(kImage);
      return answer(device, request.unique, 0, &out, sizeof out);
    }
    case FUSE_GETATTR:
      return answer_attributes(device, request);
    case FUSE_SETATTR: {
      fuse_setattr_in in{};
      std::memcpy(&in, body, sizeof in);
      if ((in.valid & FATTR_UID) != 0) owner[request.nodeid - kRoot][0] = in.uid;
      if ((in.valid & FATTR_GID) != 0) owner[request.nodeid - kRoot][1] = in.gid;
      return answer_attributes(device, request);
    }
    case FUSE_STATFS: {
      fuse_statfs_out out{};
      return answer(device, request.unique, 0, &out, sizeof out);
    }
    case FUSE_FORGET:
    case FUSE_BATCH_FORGET:
    case FUSE_INTERRUPT:
      return;
    default:
      return answer(device, request.unique, ENOSYS);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const int device = ::open("/dev/fuse", O_RDWR | O_CLOEXEC);
  if (device < 0) return fail("open /dev/fuse");
  const std::string options = "fd=" + std::to_string(device) + ",rootmode=40000,user_id=0,group_id=0,allow_other";
  if (::mount("stopping-fs", argv[1], "fuse", 0, options.c_str()) != 0) return fail("mount");
  say("ready");
  static char buffer[kBufferSize];
  bool silent = false;
  for (;;) {
    pollfd waiting[] = {{device, POLLIN, 0}, {silent ? -1 : STDIN_FILENO, POLLIN, 0}};
    if (::poll(waiting, 2, -1) < 0) return fail("poll");
    if (waiting[1].revents != 0) {
      silent = true;
      say("silent");
      continue;
    }
    const ssize_t length = ::read(device, buffer, sizeof buffer - 1);
    if (length < 0 && (errno == EINTR || errno == EAGAIN || errno == ENOENT)) continue;
    if (length < static_cast<ssize_t>(sizeof(fuse_in_header))) return 0;
    buffer[length] = 0;
    fuse_in_header request{};
    std::memcpy(&request, buffer, sizeof request);
    if (!silent) {
      serve(device, request, buffer + sizeof request);
    } else if (request.opcode != FUSE_FORGET && request.opcode != FUSE_BATCH_FORGET) {
      say("asked");
    }
  }
}
