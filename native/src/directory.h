// Looking at and watching directories below a given one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "result.h"

namespace privsep {

inline constexpr size_t kMaxListing = 65536;

Result<std::vector<std::string>> list_directory(int dirfd, const std::vector<std::string>& components,
                                                size_t limit);

// Adds an inotify watch on the directory. `mask`: event bits of inotify(7), no modifiers.
Result<int> watch_directory(int inotify, int dirfd, const std::vector<std::string>& components, uint32_t mask);

}  // namespace privsep
