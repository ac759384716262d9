// The changes of one attempt, with what takes each of them back.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "result.h"

namespace privsep {

// Called before every kernel operation that changes something; an errno makes that operation fail
// without being tried. Lets tests reach every point of failure.
using StepHook = std::function<int(const std::string& operation)>;

// From a hook: the operation is left out and counts as done. For finding out what would be changed.
constexpr int kLeaveOut = -1;

class Transaction {
 public:
  using Change = std::function<Status()>;

  explicit Transaction(const StepHook& hook) : hook_(hook) {}

  // Makes a change; if that succeeds `undo`, where given, is remembered.
  Status run(const std::string& operation, const Change& change, Change undo = nullptr);

  // Makes a change that cannot be taken back.
  Status run_for_good(const std::string& operation, const Change& change);

  // Takes back what was made, last first. Each step is tried up to three times when the kernel is
  // merely busy. All steps are tried; the first failure is returned.
  Status undo();

  bool changed() const { return changed_; }
  // Something stays, whatever is undone.
  bool changed_for_good() const { return changed_for_good_; }

 private:
  Status attempt(const std::string& operation, const Change& change, bool* left_out);

  struct Step {
    std::string operation;
    Change undo;
  };
  const StepHook& hook_;
  std::vector<Step> steps_;
  bool changed_ = false;
  bool changed_for_good_ = false;
};

// Errors that pass by themselves.
bool is_transient(int error);

}  // namespace privsep
