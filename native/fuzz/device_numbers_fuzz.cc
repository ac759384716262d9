// /proc/misc and /proc/devices.
#include "../src/device_numbers.h"

#include <string>

#include "target.h"

using namespace privsep;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view text = fuzz::text_of(data, size);
  auto minor = find_misc_minor(text, "sev");
  PROMISE(!minor || text.find(std::to_string(*minor) + " sev") != text.npos);
  auto major = find_character_major(text, "vfio");
  PROMISE(!major || text.find(std::to_string(*major) + " vfio") != text.npos);
  // Block devices are others.
  PROMISE(!find_character_major("Block devices:\n" + std::string(text.substr(0, text.find('C'))), "vfio"));
  return 0;
}
