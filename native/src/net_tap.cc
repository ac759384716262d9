#include "net_tap.h"

#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "fd.h"

namespace privsep {
namespace {

constexpr const char* kTunDevice = "/dev/net/tun";
const dev_t kTunNumber = makedev(10, 200);

// A tun descriptor belongs to the network namespace in which it was opened; the path is the helper's own
// node, since only the network namespace is the pod's.
Result<Fd> open_tun() {
  Fd fd(::open(kTunDevice, O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  if (!fd.valid()) return Error::last("open /dev/net/tun");
  struct stat node {};
  if (::fstat(fd.get(), &node) != 0) return Error::last("stat /dev/net/tun");
  if (!S_ISCHR(node.st_mode) || node.st_rdev != kTunNumber)
    return Error::refusal(ENODEV, "/dev/net/tun is not char 10:200");
  return fd;
}

}  // namespace

Result<LinkRecord> create_tap(Links& links, Transaction& changes, const std::string& name, TapOwner owner,
                              bool multi_queue) {
  Result<Fd> tun = open_tun();
  if (!tun) return tun.error();
  ifreq request{};
  name.copy(request.ifr_name, IFNAMSIZ - 1);
  request.ifr_flags =
      static_cast<short>(multi_queue ? IFF_TAP | IFF_MULTI_QUEUE | IFF_NO_PI : IFF_TAP | IFF_TUN_EXCL | IFF_ONE_QUEUE);
  auto step = [&](const std::string& operation, unsigned long command, unsigned long argument,
                  Transaction::Change undo = nullptr) {
    return changes.run(
        operation + " " + name,
        [&] {
          return ::ioctl(tun->get(), command, argument) == 0 ? ok() : Status(Error::last(operation + " " + name));
        },
        std::move(undo));
  };
  // Until it is made persistent, last, closing the descriptor is enough to take the tap back.
  Status done = step("create tap", TUNSETIFF, reinterpret_cast<unsigned long>(&request));
  if (done) done = step("set owner of", TUNSETOWNER, owner.uid);
  if (done) done = step("set group of", TUNSETGROUP, owner.gid);
  if (done) done = step("make persistent", TUNSETPERSIST, 1, [&links, name] { return links.delete_index(0, name); });
  if (!done) return done.error();
  tun->reset();  // the carrier goes with the last descriptor
  Result<LinkRecord> link = links.find(name);
  if (link) link->created = true;
  return link;
}

}  // namespace privsep
