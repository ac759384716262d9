// Lists of CPUs as cpuset(7) writes them: "0-3,7".
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>

namespace privsep {

// One more than the highest CPU that Linux can be built for.
inline constexpr uint32_t kMaxCpus = 8192;

using CpuList = std::set<uint32_t>;

// The empty list for empty text; nothing for what is no list.
std::optional<CpuList> parse_cpu_list(std::string_view text);

// "0,1,2,7"
std::string format_cpu_list(const CpuList& cpus);

}  // namespace privsep
