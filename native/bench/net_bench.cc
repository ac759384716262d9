// The network work of one VM start and nothing else: a bare loop over apply_plan, no thread pool, no
// Node-API. Prints one line for the first call in a fresh namespace (set up) and one for a repeated call
// (nothing to do): microseconds, median and 99th percentile. Needs root.
// usage: privsep_net_bench [ROUNDS]
#include <fcntl.h>
#include <sched.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "fd.h"
#include "net_apply.h"
#include "net_ops.h"

namespace {

constexpr int kMaxRounds = 10000;

using privsep::Fd;

double now_us() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) / 1e3;
}

// A namespace with the pod link of a CNI; the caller is in it afterwards.
bool enter_new_pod() {
  return ::unshare(CLONE_NEWNET) == 0 &&
         std::system(
             "ip link add eth0 mtu 1450 type veth peer name p0 && ip link set p0 up && ip link set eth0 up && "
             "ip addr add 10.244.2.5/24 dev eth0 && ip -6 addr add fd00:10:244:2::5/64 dev eth0 nodad") == 0;
}

privsep::NetworkPlan plan() {
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

// Microseconds that one call took; negative when it failed or did not do what was expected.
double apply(bool changes) {
  double start = now_us();
  privsep::Result<bool> result = privsep::apply_plan(plan(), {});
  double took = now_us() - start;
  return result && *result == changes ? took : -1;
}

void report(const char* what, std::vector<double> times) {
  std::sort(times.begin(), times.end());
  std::printf("%s median %.0f p99 %.0f\n", what, times[times.size() / 2], times[times.size() * 99 / 100]);
}

}  // namespace

int main(int argc, char** argv) {
  int rounds = argc > 1 ? std::atoi(argv[1]) : 50;
  if (rounds < 1 || rounds > kMaxRounds) {
    std::fprintf(stderr, "rounds: 1 to %d\n", kMaxRounds);
    return 2;
  }
  Fd home(::open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC));
  std::vector<double> first;
  std::vector<double> again;
  for (int i = 0; i < rounds; ++i) {
    if (!enter_new_pod()) {
      std::perror("pod");
      return 1;
    }
    first.push_back(apply(true));
    again.push_back(apply(false));
    if (::setns(home.get(), CLONE_NEWNET) != 0 || first.back() < 0 || again.back() < 0) {
      std::fprintf(stderr, "round %d failed\n", i);
      return 1;
    }
  }
  report("masquerade set-up us:", first);
  report("masquerade repeated us:", again);
  return 0;
}
