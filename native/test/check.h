// A small test frame: TEST registers, CHECK counts a failure and goes on.
#pragma once

#include <cstdio>
#include <string>
#include <vector>

namespace privsep::test {

struct Case {
  const char* name;
  void (*run)();
};

inline std::vector<Case>& cases() {
  static std::vector<Case> all;
  return all;
}

inline int& failed_checks() {
  static int count = 0;
  return count;
}

struct Registration {
  Registration(const char* name, void (*run)()) { cases().push_back({name, run}); }
};

inline bool check(bool holds, const char* expression, const char* file, int line) {
  if (!holds) {
    std::fprintf(stderr, "%s:%d: %s\n", file, line, expression);
    ++failed_checks();
  }
  return holds;
}

}  // namespace privsep::test

#define TEST(name)                                                       \
  static void name();                                                    \
  static const privsep::test::Registration name##_registration{#name, name}; \
  static void name()

#define CHECK(condition) privsep::test::check(static_cast<bool>(condition), #condition, __FILE__, __LINE__)
// For what the rest of the test needs.
#define REQUIRE(condition)      \
  do {                          \
    if (!CHECK(condition)) return; \
  } while (false)
