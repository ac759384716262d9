#include "check.h"

int main() {
  int passed = 0;
  int failed = 0;
  for (const privsep::test::Case& test : privsep::test::cases()) {
    int before = privsep::test::failed_checks();
    test.run();
    if (privsep::test::failed_checks() == before) {
      ++passed;
    } else {
      ++failed;
      std::fprintf(stderr, "FAILED %s\n", test.name);
    }
  }
  std::printf("%d passed, %d failed\n", passed, failed);
  return failed == 0 ? 0 : 1;
}
