// SELinux labels of a launcher: of its processes, and of the root of its container.
#pragma once

#include <string>
#include <string_view>

#include "launcher.h"
#include "namespaces.h"
#include "result.h"

namespace privsep {

// Value of security.selinux of the root directory of the launcher's mount namespace, at most one page, as the file
// system has it. Empty where nothing is labelled.
Result<std::string> launcher_root_label(Home& home, const Launcher& launcher);

// user:role:type, with a level where the policy has levels. Printable, at most one page.
bool is_process_context(std::string_view text);

// "container_t" of "system_u:system_r:container_t:s0:c1,c2".
std::string context_type(const std::string& context);

// Label of the launcher's process, proc_pid_attr(5) `current`. Refuses what is none of SELinux's.
Result<std::string> launcher_context(const Launcher& launcher);

// Of the calling thread.
Result<std::string> own_context();

}  // namespace privsep
