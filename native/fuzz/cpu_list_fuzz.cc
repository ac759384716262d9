// cpuset.cpus and its like.
#include "../src/cpu_list.h"
#include "target.h"

using namespace privsep;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  auto cpus = parse_cpu_list(fuzz::text_of(data, size));
  if (!cpus) return 0;
  PROMISE(cpus->empty() || *cpus->rbegin() < kMaxCpus);
  auto again = parse_cpu_list(format_cpu_list(*cpus));
  PROMISE(again && *again == *cpus);
  return 0;
}
