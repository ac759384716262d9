// /proc/<pid>/stat.
#include "../src/processes.h"
#include "target.h"

using namespace privsep;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view text = fuzz::text_of(data, size);
  auto process = parse_process_stat(text);
  PROMISE(!process || process->comm.size() <= kMaxComm);
  PROMISE(!process || text.find("(" + process->comm + ") ") != text.npos);
  return 0;
}
