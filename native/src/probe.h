// Which of the kernel interfaces that operations use this kernel has.
#pragma once

#include <string>
#include <vector>

namespace privsep {

struct KernelFeature {
  std::string name;
  int error = 0;  // 0: there; EPERM: the caller may not find out; else why it is not
};

// Tries each interface with arguments that cannot take effect.
std::vector<KernelFeature> probe_kernel();

}  // namespace privsep
