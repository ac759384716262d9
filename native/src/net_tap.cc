#include "net_tap.h"

#include <fcntl.h>

#include "fd.h"
#include "net_tap_label.h"
#include "tun_device.h"

namespace privsep {
namespace {

constexpr const char* kTunDevice = "/dev/net/tun";

// In this process, with its label. The path is the helper's own node, since only the network namespace is the pod's.
Status make_tap(Transaction& changes, TapRequests requests, const std::string& name, const Transaction::Change& undo) {
  Fd tun(open_tun_device(AT_FDCWD, kTunDevice));
  if (!tun.valid()) return Error::last("open /dev/net/tun");
  for (int step = 0; step < TapRequests::kCount; ++step) {
    const std::string operation = std::string(TapRequests::operation(step)) + " " + name;
    Status done = changes.run(
        operation,
        [&] {
          int error = requests.make(tun.get(), step);
          return error == 0 ? ok() : Status(Error::of(error, operation));
        },
        step == TapRequests::kPersist ? undo : nullptr);
    if (!done) return done;
  }
  return ok();  // the carrier goes with the descriptor
}

Status make_tap_as(Transaction& changes, const TapRequests& requests, const std::string& name, const TapLabel& label,
                   const Transaction::Change& undo) {
  return changes.run(
      "create tap " + name,
      [&] {
        bool may_exist = false;
        Status made = make_labelled_tap(requests, name, label, &may_exist);
        if (made || !may_exist) return made;
        Status undone = undo();
        made.error().unchanged = undone || undone.error().code == ENODEV;
        return made;
      },
      undo);
}

}  // namespace

Result<LinkRecord> create_tap(Links& links, Transaction& changes, const std::string& name, TapOwner owner,
                              bool multi_queue, const std::optional<TapLabel>& label) {
  const TapRequests requests(name, owner.uid, owner.gid, multi_queue);
  auto undo = [&links, name] { return links.delete_index(0, name); };
  Status made = label ? make_tap_as(changes, requests, name, *label, undo) : make_tap(changes, requests, name, undo);
  if (!made) return made.error();
  Result<LinkRecord> link = links.find(name);
  if (link) link->created = true;
  return link;
}

}  // namespace privsep
