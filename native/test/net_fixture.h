// A pod's network namespace for tests: a veth to a peer namespace, addresses as a CNI gives them. Needs root,
// ip(8) and, where rules are looked at, nft(8).
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "../src/fd.h"
#include "../src/net_apply.h"
#include "../src/net_ops.h"

namespace privsep::test {

// As CHECK, with what was expected where.
bool check_that(bool holds, const std::string& what);
// Shows the differing lines.
bool check_equal(const std::string& actual, const std::string& expected, const std::string& what);
// `part` occurs in `text`.
bool check_has(const std::string& text, const std::string& part);

constexpr const char* kPodMac = "0a:58:0a:f4:02:05";

class Pod {
 public:
  enum class Addresses { kIpv4, kDual, kNone };

  explicit Pod(Addresses addresses);

  int netns() const { return pod_.get(); }
  // Adds a pod link without addresses, as Multus does for a secondary network without IPAM: pod16477688c0e,
  // MAC 02:00:00:aa:bb:cc, MTU 1500.
  void add_secondary();
  // Standard output of a shell command in the pod's namespace.
  std::string run(const std::string& command) const;
  // Everything about links, addresses, routes, listed sysctls and NAT rules that does not vary from run
  // to run, as text. Random MACs and the kernel-made addresses that follow from them are left out.
  std::string snapshot() const;

  // What happens to the change number `step` (from 1, undo steps included): 0, an errno with which it
  // fails, or kKill: the process ends before it.
  using Fault = std::function<int(unsigned step, const std::string& operation)>;
  static constexpr int kKill = -1;

  struct Outcome {
    enum class Kind { kUnchanged, kChanged, kFailed, kKilled } kind;
    int code = 0;
    bool unchanged = false;
    unsigned steps = 0;
    unsigned faults = 0;
  };
  // Applies as apply_network does, in a child process.
  Outcome apply(const NetworkPlan& plan, const Fault& fault = nullptr) const;

 private:
  Fd pod_;
  Fd peer_;
};

// Without, a bridge stands in; net_vm.sh runs these tests under a kernel that has dummy links.
bool kernel_has_dummy();

NetworkPlan bridge_plan();
NetworkPlan masquerade_plan();
// Bridge binding without an address on the bridge.
NetworkPlan managed_tap_plan();
// No links, for a launcher that runs passt as group 107.
NetworkPlan passt_plan();
// A bridge binding of pod link pod16477688c0e, which add_secondary makes, in addition.
NetworkPlan with_secondary(NetworkPlan plan);

}  // namespace privsep::test
