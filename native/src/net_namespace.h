// Work inside a pod's network namespace, and the way back.
#pragma once

#include <sys/stat.h>

#include <functional>
#include <vector>

#include "namespaces.h"
#include "net_ops.h"
#include "result.h"

namespace privsep {

// Runs `work` in the network namespace. Refuses (EPERM) a namespace that is in `forbidden` or that is the
// thread's own, before entering it. When the way back fails the thread stays where it is and must be
// thrown away; whoever runs the thread sees that too.
template <typename T>
Result<T> in_namespace(int netns_fd, const std::vector<NamespaceId>& forbidden,
                       const std::function<Result<T>()>& work) {
  struct stat target {};
  if (::fstat(netns_fd, &target) != 0) return Error::last("stat network namespace");
  for (const NamespaceId& id : forbidden)
    if (target.st_dev == id.dev && target.st_ino == id.ino)
      return Error::refusal(EPERM, "network namespace is not a pod's");
  Result<Home> home = Home::here();
  if (!home) return home.error();
  Status entered = home->enter_network(netns_fd);
  if (!entered) return entered.error();
  Result<T> result = work();
  Status back = home->come_back();
  if (!back) {
    back.error().unchanged = !result && result.error().unchanged;
    return back.error();
  }
  return result;
}

}  // namespace privsep
