// /proc/<pid>/mountinfo.
#include "../src/mountinfo.h"

#include "target.h"

using namespace privsep;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view text = fuzz::text_of(data, size);
  dev_t device = find_filesystem(text, "devtmpfs");
  PROMISE(device == 0 || text.find("devtmpfs") != text.npos);
  std::string_view type = filesystem_of_mount(text, 26);
  PROMISE(type.empty() || (text.find("26") != text.npos && text.find(type) != text.npos));
  return 0;
}
