#include "cpu_list.h"

#include <algorithm>
#include <charconv>

namespace privsep {

namespace {

bool parse_cpu(std::string_view text, uint32_t* cpu) {
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *cpu);
  return error == std::errc() && end == text.data() + text.size() && *cpu < kMaxCpus;
}

}  // namespace

std::optional<CpuList> parse_cpu_list(std::string_view text) {
  CpuList cpus;
  if (!text.empty() && text.back() == '\n') text.remove_suffix(1);
  if (text.empty()) return cpus;
  for (;;) {
    size_t comma = std::min(text.find(','), text.size());
    std::string_view item = text.substr(0, comma);
    size_t dash = item.find('-');
    uint32_t first = 0;
    if (!parse_cpu(item.substr(0, dash), &first)) return std::nullopt;
    uint32_t last = first;
    if (dash != item.npos && (!parse_cpu(item.substr(dash + 1), &last) || last < first)) return std::nullopt;
    for (uint32_t cpu = first; cpu <= last; ++cpu) cpus.insert(cpu);
    if (comma == text.size()) return cpus;
    text.remove_prefix(comma + 1);
  }
}

std::string format_cpu_list(const CpuList& cpus) {
  std::string text;
  for (uint32_t cpu : cpus) {
    if (!text.empty()) text += ',';
    text += std::to_string(cpu);
  }
  return text;
}

}  // namespace privsep
