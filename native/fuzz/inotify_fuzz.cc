// What read(2) gives of an inotify instance.
#include <sys/inotify.h>

#include "../src/inotify.h"
#include "target.h"

using namespace privsep;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  size_t names = 0;
  auto events = parse_inotify(fuzz::text_of(data, size));
  for (const InotifyEvent& event : events) names += event.name.size();
  PROMISE(events.size() * sizeof(inotify_event) + names <= size);
  return 0;
}
