// Names that calls and pods give: UIDs, volumes, files, disks, path components.
#include "../src/pod.h"
#include "../src/walk.h"
#include "target.h"

using namespace privsep;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view text = fuzz::text_of(data, size);
  auto uid = PodUid::parse(text);
  PROMISE(!uid || (uid->text() == text && text.find('/') == text.npos));
  auto volume = parse_volume(text);
  PROMISE(!volume || volume_name(*volume) == text);
  if (check_file_name(text)) PROMISE(is_entry_name(text));
  if (is_entry_name(text)) PROMISE(text.find('/') == text.npos && text.find('\0') == text.npos && text != "..");
  for (std::string_view suffix : {".sock", ".img"}) {
    int index = parse_disk_name(text, suffix);
    PROMISE(index >= -1 && index <= kMaxDiskIndex);
    PROMISE(index < 0 || disk_name(index, suffix) == text);
  }
  std::vector<std::string> components;
  for (size_t at = 0; at <= text.size();) {
    size_t end = std::min(text.find('\n', at), text.size());
    components.emplace_back(text.substr(at, end - at));
    at = end + 1;
  }
  auto path = join_components(components);
  PROMISE(!path || ("/" + *path + "/").find("/../") == std::string::npos);
  return 0;
}
