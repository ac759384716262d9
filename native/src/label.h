// The SELinux label that a launcher's container gave its root.
#pragma once

#include <string>

#include "launcher.h"
#include "namespaces.h"
#include "result.h"

namespace privsep {

// Value of security.selinux of the root directory of the launcher's mount namespace, at most one page, as the file
// system has it. Empty where nothing is labelled.
Result<std::string> launcher_root_label(Home& home, const Launcher& launcher);

}  // namespace privsep
