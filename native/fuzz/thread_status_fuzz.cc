// /proc/<pid>/task/<tid>/status.
#include "../src/capabilities.h"
#include "target.h"

using namespace privsep;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view text = fuzz::text_of(data, size);
  bool complete = parse_thread_status(text).has_value();
  PROMISE(!complete || text.find("\nCapEff:") != text.npos);
  return 0;
}
