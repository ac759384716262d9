// Reading files of /proc, whose size is known only at their end.
#pragma once

#include <cstddef>
#include <string>

#include "result.h"

namespace privsep {

// The whole text; EFBIG beyond `limit` bytes.
Result<std::string> read_proc_file(const std::string& path, size_t limit);
// The same, below a directory of /proc.
Result<std::string> read_proc_file(int directory, const std::string& path, size_t limit);

}  // namespace privsep
