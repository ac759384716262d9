// A point in time by which a call must be over.
#pragma once

#include <time.h>

#include <algorithm>
#include <cstdint>

namespace privsep {

class Deadline {
 public:
  // Milliseconds of a clock that does not go back.
  static int64_t now_ms() {
    timespec ts{};
    ::clock_gettime(CLOCK_MONOTONIC, &ts);
    return static_cast<int64_t>(ts.tv_sec) * 1000 + ts.tv_nsec / 1000000;
  }

  static Deadline after_ms(int64_t ms) { return Deadline(now_ms() + ms); }

  // Milliseconds left, never negative, fit for poll(2).
  int remaining_ms() const {
    return static_cast<int>(std::clamp<int64_t>(at_ms_ - now_ms(), 0, INT32_MAX));
  }
  bool passed() const { return now_ms() >= at_ms_; }
  int64_t at_ms() const { return at_ms_; }

 private:
  explicit Deadline(int64_t at_ms) : at_ms_(at_ms) {}
  int64_t at_ms_;
};

}  // namespace privsep
