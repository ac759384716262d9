#include "vsock.h"

#include <fcntl.h>
#include <linux/vm_sockets.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

namespace privsep {

namespace {

constexpr const char* kDevice = "/dev/vhost-vsock";
const dev_t kDeviceNumber = makedev(10, 241);
constexpr unsigned kPort = 1;
constexpr int kBacklog = 64;

// Of the helper's own /dev, which nobody but the node changes.
Result<Fd> open_device(const std::string& path) {
  Fd fd(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW));
  if (!fd.valid()) return Error::last("open " + path);
  struct stat node {};
  if (::fstat(fd.get(), &node) != 0) return Error::last("stat " + path);
  if (!S_ISCHR(node.st_mode) || node.st_rdev != kDeviceNumber)
    return Error::refusal(ENODEV, path + " is not char 10:241");
  return fd;
}

}  // namespace

Result<bool> touch_vhost_vsock(const std::string& path) {
  auto device = open_device(path);
  if (device) return true;
  // EPERM is the device cgroup's; the file's mode would give EACCES.
  const Error& error = device.error();
  if (!error.refused && (error.code == ENOENT || error.code == EPERM)) return false;
  return error;
}

Result<Fd> listen_vsock() {
  auto touched = touch_vhost_vsock(kDevice);
  if (!touched) return touched.error();
  Fd listener(::socket(AF_VSOCK, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener.valid()) return Error::last("socket AF_VSOCK");
  sockaddr_vm address{};
  address.svm_family = AF_VSOCK;
  address.svm_cid = VMADDR_CID_HOST;
  address.svm_port = kPort;
  if (::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
    return Error::last(*touched ? "bind vsock 2:1" : "bind vsock 2:1, /dev/vhost-vsock being out of reach");
  }
  if (::listen(listener.get(), kBacklog) != 0) return Error::last("listen vsock 2:1");
  return listener;
}

}  // namespace privsep
