#include "net_transaction.h"

namespace privsep {

bool is_transient(int error) {
  return error == EBUSY || error == EAGAIN || error == EINTR || error == ENOBUFS || error == ENOMEM;
}

Status Transaction::attempt(const std::string& operation, const Change& change, bool* left_out) {
  if (hook_) {
    int injected = hook_(operation);
    *left_out = injected == kLeaveOut;
    if (*left_out) return ok();
    if (injected != 0) return Error::of(injected, operation);
  }
  return change();
}

Status Transaction::run(const std::string& operation, const Change& change, Change undo) {
  bool left_out = false;
  Status done = attempt(operation, change, &left_out);
  if (!done || left_out) return done;
  changed_ = true;
  if (undo) steps_.push_back({"undo " + operation, std::move(undo)});
  return done;
}

Status Transaction::run_for_good(const std::string& operation, const Change& change) {
  bool left_out = false;
  Status done = attempt(operation, change, &left_out);
  if (done && !left_out) changed_ = changed_for_good_ = true;
  return done;
}

Status Transaction::undo() {
  Status result = ok();
  bool left_out = false;
  for (auto step = steps_.rbegin(); step != steps_.rend(); ++step) {
    Status done = attempt(step->operation, step->undo, &left_out);
    for (int i = 0; i < 2 && !done && is_transient(done.error().code); ++i)
      done = attempt(step->operation, step->undo, &left_out);
    if (!done && result) result = done;
  }
  steps_.clear();
  return result;
}

}  // namespace privsep
