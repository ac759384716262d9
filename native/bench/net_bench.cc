// The native work of a pod's network set-up and nothing else: no thread pool, no Node-API. Reads paths of network
// namespaces from standard input, one a line. In each it sets up masquerade binding of both families for eth0, takes
// it down again, and prints the microseconds that the set-up took. Needs root.
#include <fcntl.h>
#include <sched.h>
#include <time.h>

#include <cstdio>
#include <iostream>
#include <string>

#include "fd.h"
#include "net_ops.h"

namespace {

double now_us() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) / 1e3;
}

privsep::NetworkPlan set_up() {
  privsep::MasqueradePlan masquerade;
  masquerade.ipv4 = {"10.0.2.0", 24};
  masquerade.ipv6 = {"fd10:0:2::", 120};
  privsep::AttachmentPlan attachment;
  attachment.pod_interface = "eth0";
  attachment.primary = true;
  attachment.binding = masquerade;
  privsep::NetworkPlan plan;
  plan.attachments.push_back(attachment);
  plan.uid = plan.gid = 107;
  return plan;
}

privsep::NetworkPlan take_down() {
  privsep::NetworkPlan plan;
  plan.detachments.push_back({"eth0", true});
  return plan;
}

bool apply(int netns, const privsep::NetworkPlan& plan) {
  privsep::Result<bool> changed = privsep::apply_network(netns, {}, plan);
  if (!changed) std::fprintf(stderr, "%s: errno %d\n", changed.error().operation.c_str(), changed.error().code);
  if (changed && !*changed) std::fprintf(stderr, "nothing to do\n");
  return changed && *changed;
}

}  // namespace

int main() {
  // As a privileged thread of the helper, which has a root of its own.
  if (::unshare(CLONE_FS) != 0) return 1;
  const privsep::NetworkPlan up = set_up();
  const privsep::NetworkPlan down = take_down();
  for (std::string path; std::getline(std::cin, path);) {
    privsep::Fd netns(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    double start = now_us();
    if (!netns.valid() || !apply(netns.get(), up)) return 1;
    double took = now_us() - start;
    if (!apply(netns.get(), down)) return 1;
    std::printf("%.0f\n", took);
    std::fflush(stdout);
  }
  return 0;
}
