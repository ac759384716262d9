#include <cstdlib>
#include <cstring>

#include "check.h"

// usage: privsep_tests [PART...]: the tests whose names contain one of the parts; all without any. Of these, with
// PRIVSEP_TEST_SHARE=I/N, each N-th from number I on: shares may run side by side.
int main(int argc, char** argv) {
  int share = 0;
  int shares = 1;
  if (const char* text = std::getenv("PRIVSEP_TEST_SHARE")) {
    if (std::sscanf(text, "%d/%d", &share, &shares) != 2 || shares < 1) return 2;
  }
  int number = 0;
  int passed = 0;
  int failed = 0;
  for (const privsep::test::Case& test : privsep::test::cases()) {
    bool chosen = argc == 1;
    for (int i = 1; i < argc; ++i) chosen = chosen || std::strstr(test.name, argv[i]) != nullptr;
    if (!chosen || number++ % shares != share) continue;
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
