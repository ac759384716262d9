// Errors as values. Nothing here throws; the addon is built with -fno-exceptions.
#pragma once

#include <cerrno>
#include <optional>
#include <string>
#include <utility>

namespace privsep {

// A failed system call or check. `operation` names what was attempted.
struct Error {
  int code = 0;              // errno
  std::string operation;     // "openat2 launcher-sock"
  bool refused = false;      // an identity or type check said no, not the kernel
  bool unchanged = true;     // nothing in the pod differs from before the call
  int item = -1;             // which of the things that the call was given; negative: none of them

  static Error last(std::string operation) { return Error{errno, std::move(operation), false, true}; }
  static Error of(int code, std::string operation) { return Error{code, std::move(operation), false, true}; }
  static Error refusal(int code, std::string check) { return Error{code, std::move(check), true, true}; }
};

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}            // NOLINT: implicit by design
  Result(Error error) : error_(std::move(error)) {}        // NOLINT: implicit by design

  explicit operator bool() const { return value_.has_value(); }
  T& operator*() { return *value_; }
  const T& operator*() const { return *value_; }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }
  const Error& error() const { return error_; }
  Error& error() { return error_; }

 private:
  std::optional<T> value_;
  Error error_;
};

struct Unit {};
using Status = Result<Unit>;
inline Status ok() { return Status(Unit{}); }

}  // namespace privsep
