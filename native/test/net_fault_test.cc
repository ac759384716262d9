// Failures and deaths at every point of apply_network, in real namespaces.
#include <cerrno>
#include <optional>

#include "check.h"
#include "net_fixture.h"

using namespace privsep;
using namespace privsep::test;
using Kind = Pod::Outcome::Kind;

namespace {

struct Scenario {
  Pod::Addresses addresses;
  bool secondary;
  NetworkPlan plan;
  std::optional<NetworkPlan> earlier;  // a set-up that is there already
  std::string wanted;                  // end state of an undisturbed call
  unsigned steps = 0;                  // that it took

  Scenario(Pod::Addresses addresses, bool secondary, NetworkPlan plan, std::optional<NetworkPlan> earlier = {})
      : addresses(addresses), secondary(secondary), plan(std::move(plan)), earlier(std::move(earlier)) {
    Pod pod = make_pod();
    Pod::Outcome first = pod.apply(this->plan);
    check_that(first.kind == Kind::kChanged, "undisturbed");
    steps = first.steps;
    wanted = pod.snapshot();
    Pod::Outcome second = pod.apply(this->plan);
    check_that(second.kind == Kind::kUnchanged && second.steps == 0, "a second call changes nothing");
    check_equal(pod.snapshot(), wanted, "a second call keeps the state");
  }

  Pod make_pod() const {
    Pod pod(addresses);
    if (secondary) pod.add_secondary();
    if (earlier) check_that(pod.apply(*earlier).kind == Kind::kChanged, "set up before");
    return pod;
  }
};

Pod::Fault at(unsigned number, int fault) {
  return [=](unsigned step, const std::string&) { return step == number ? fault : 0; };
}

// NET-032.
void killed_anywhere(const Scenario& it) {
  for (unsigned n = 1; n <= it.steps; ++n) {
    std::string what = "killed before change " + std::to_string(n);
    Pod pod = it.make_pod();
    check_that(pod.apply(it.plan, at(n, Pod::kKill)).kind == Kind::kKilled, what);
    check_that(pod.apply(it.plan).kind == Kind::kChanged, what + ": completed by the next call");
    check_equal(pod.snapshot(), it.wanted, what);
  }
}

// After a failure in the last change, the process dies before each step of the undo.
void killed_while_undoing(const Scenario& it) {
  for (unsigned n = 1;; ++n) {
    std::string what = "killed before undo step " + std::to_string(n);
    Pod pod = it.make_pod();
    Pod::Outcome outcome = pod.apply(it.plan, [&](unsigned step, const std::string&) {
      return step == it.steps ? EPERM : step == it.steps + n ? Pod::kKill : 0;
    });
    if (outcome.kind != Kind::kKilled) {
      check_that(n > 3, "the undo has steps");
      return;
    }
    check_that(pod.apply(it.plan).kind == Kind::kChanged, what + ": completed by the next call");
    check_equal(pod.snapshot(), it.wanted, what);
  }
}

void refused_anywhere(const Scenario& it) {
  for (unsigned n = 1; n <= it.steps; ++n) {
    std::string what = "EPERM at change " + std::to_string(n);
    Pod pod = it.make_pod();
    std::string before = pod.snapshot();
    Pod::Outcome outcome = pod.apply(it.plan, at(n, EPERM));
    check_that(outcome.kind == Kind::kFailed && outcome.code == EPERM && outcome.unchanged, what);
    check_equal(pod.snapshot(), before, what + ": undone");
    check_that(pod.apply(it.plan).kind == Kind::kChanged, what + ": works afterwards");
    check_equal(pod.snapshot(), it.wanted, what + ": afterwards");
  }
}

// AFT-043.
void busy_anywhere(const Scenario& it) {
  for (unsigned n = 1; n <= it.steps; ++n) {
    std::string what = "EBUSY once at change " + std::to_string(n);
    Pod pod = it.make_pod();
    check_that(pod.apply(it.plan, at(n, EBUSY)).kind == Kind::kChanged, what);
    check_equal(pod.snapshot(), it.wanted, what);
  }
}

void every_fault(const Scenario& it) {
  killed_anywhere(it);
  killed_while_undoing(it);
  refused_anywhere(it);
  busy_anywhere(it);
}

// Of a secondary network beside a primary one that is in use.
NetworkPlan only_secondary() {
  NetworkPlan plan = with_secondary(masquerade_plan());
  plan.attachments.erase(plan.attachments.begin());
  return plan;
}

NetworkPlan unplug_of(const char* pod_interface, bool primary) {
  NetworkPlan plan;
  plan.uid = plan.gid = 107;
  plan.detachments.push_back({pod_interface, primary});
  return plan;
}

}  // namespace

TEST(faults_of_masquerade_binding) { every_fault({Pod::Addresses::kDual, false, masquerade_plan()}); }

TEST(faults_of_bridge_binding) { every_fault({Pod::Addresses::kDual, false, bridge_plan()}); }

TEST(faults_of_managed_tap_and_passt) {
  NetworkPlan plan = managed_tap_plan();
  plan.passt_gid = 107;
  every_fault({Pod::Addresses::kIpv4, false, plan});
}

TEST(faults_of_hotplug) { every_fault({Pod::Addresses::kDual, true, only_secondary(), masquerade_plan()}); }

TEST(faults_of_unplug) {
  for (const Scenario& it :
       {Scenario(Pod::Addresses::kDual, true, unplug_of("pod16477688c0e", false), with_secondary(masquerade_plan())),
        Scenario(Pod::Addresses::kDual, true, unplug_of("pod16477688c0e", false), with_secondary(bridge_plan())),
        Scenario(Pod::Addresses::kDual, false, unplug_of("eth0", true), masquerade_plan())}) {
    killed_anywhere(it);
    busy_anywhere(it);
  }
}

TEST(faults_of_two_bindings) {
  killed_anywhere({Pod::Addresses::kIpv4, true, with_secondary(masquerade_plan())});
  refused_anywhere({Pod::Addresses::kDual, true, with_secondary(bridge_plan())});
}

// Three attempts, everything undone, and the caller may retry.
TEST(a_passing_error_that_does_not_pass) {
  Pod pod(Pod::Addresses::kIpv4);
  std::string before = pod.snapshot();
  Pod::Outcome outcome = pod.apply(masquerade_plan(), [](unsigned, const std::string& operation) {
    return operation == "create tap tap0" ? EBUSY : 0;
  });
  check_that(outcome.kind == Kind::kFailed && outcome.code == EBUSY && outcome.unchanged, "EBUSY for good");
  CHECK(outcome.faults == 3);
  check_equal(pod.snapshot(), before, "undone");
}

TEST(a_failed_undo_is_told) {
  Pod pod(Pod::Addresses::kIpv4);
  Pod::Outcome outcome = pod.apply(masquerade_plan(), [](unsigned, const std::string& operation) {
    return operation == "create tap tap0" || operation.compare(0, 5, "undo ") == 0 ? EBUSY : 0;
  });
  check_that(outcome.kind == Kind::kFailed && outcome.code == EBUSY && !outcome.unchanged, "not unchanged");
  check_that(pod.apply(masquerade_plan()).kind == Kind::kChanged, "the next call completes it");
}

TEST(faults_of_detachment) {
  NetworkPlan unplug = unplug_of("pod16477688c0e", false);
  for (unsigned n = 1; n <= 3; ++n) {
    for (int fault : {EPERM, EBUSY, Pod::kKill}) {
      Pod pod(Pod::Addresses::kIpv4);
      pod.add_secondary();
      check_that(pod.apply(with_secondary(masquerade_plan())).kind == Kind::kChanged, "attached");
      Pod::Outcome outcome = pod.apply(unplug, at(n, fault));
      CHECK(outcome.kind == (fault == EPERM ? Kind::kFailed : fault == EBUSY ? Kind::kChanged : Kind::kKilled));
      // What was removed does not come back, and that is told.
      CHECK(outcome.unchanged == (fault == EPERM && n == 1));
      check_that(pod.apply(unplug).kind == (fault == EBUSY ? Kind::kUnchanged : Kind::kChanged), "completed");
      check_equal(pod.run("ip -o link | grep -c 16477688c0e"), "1\n", "only the pod link is left");
    }
  }
}

// Detachments come first and stay.
TEST(a_failed_attachment_after_a_detachment) {
  Pod pod(Pod::Addresses::kIpv4);
  pod.add_secondary();
  check_that(pod.apply(with_secondary(masquerade_plan())).kind == Kind::kChanged, "attached");
  NetworkPlan plan = bridge_plan();
  plan.attachments[0].pod_interface = "absent0";
  plan.detachments.push_back({"pod16477688c0e", false});
  Pod::Outcome outcome = pod.apply(plan, [](unsigned, const std::string&) { return 0; });
  CHECK(outcome.kind == Kind::kFailed && outcome.code == ENODEV && !outcome.unchanged);
  outcome = pod.apply(plan, [](unsigned, const std::string&) { return 0; });
  CHECK(outcome.kind == Kind::kFailed && outcome.code == ENODEV && outcome.unchanged);
}
