// SELinux labels, which a launcher's process has been given by its runtime.
#include "../src/label.h"
#include "target.h"

using namespace privsep;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view text = fuzz::text_of(data, size);
  std::string type = context_type(std::string(text));
  PROMISE(text.find(type) != text.npos);
  if (!is_process_context(text)) return 0;
  // It is written to /proc/thread-self/attr/current and shown to operators.
  PROMISE(text.find('\0') == text.npos && text.find('\n') == text.npos && text.find('/') == text.npos);
  PROMISE(!type.empty() && type.find(':') == type.npos);
  return 0;
}
