// /proc/<pid>/cgroup.
#include "../src/cgroup.h"

#include <string>

#include "../src/device_cgroup.h"

#include "target.h"

using namespace privsep;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr std::string_view kPod = "0b7a1f6e-3f27-4a0e-9c39-2d6a4d1c0f11";
  constexpr std::string_view kOther = "11111111-2222-3333-4444-555555555555";
  std::string_view text = fuzz::text_of(data, size);
  bool in_pod = cgroup_is_in_pod(text, kPod);
  PROMISE(!in_pod || !cgroup_is_in_pod(text, kOther));
  PROMISE(!cgroup_is_in_pod(text, ""));
  // One hierarchy of another pod is enough to refuse.
  std::string foreign = std::string(text) + "\n0::/kubepods/pod" + std::string(kOther);
  PROMISE(!cgroup_is_in_pod(foreign, kPod));
  // What is found is below the root, and the pod's own.
  for (CgroupVersion version : {CgroupVersion::kV1, CgroupVersion::kV2}) {
    auto paths = device_cgroup_paths(text, version, kPod);
    if (!paths) continue;
    for (const std::string& path : *paths) {
      PROMISE(!path.empty() && path.substr(0, 3) != "../");
      PROMISE(cgroup_is_in_pod("0::/" + path, kPod));
    }
  }
  auto place = container_cgroup(text, "cpuset", kPod);
  PROMISE(!place || cgroup_is_in_pod("0::/" + *place, kPod));
  PROMISE(!place || place->find("/../") == place->npos);
  return 0;
}
