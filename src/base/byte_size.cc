#include "base/byte_size.h"

#include <charconv>
#include <string>

namespace vlcache {

std::optional<int64_t> parse_bytes(std::string_view text, int64_t bare_unit) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || !(value >= 0)) return std::nullopt;
  std::string unit;
  for (const char* c = end; c < text.data() + text.size(); ++c) {
    if (*c != ' ') unit += static_cast<char>(*c >= 'a' && *c <= 'z' ? *c - 'a' + 'A' : *c);
  }
  double factor = static_cast<double>(bare_unit);
  if (!unit.empty()) {
    const size_t power = std::string_view("BKMGT").find(unit[0]);
    if (power == std::string_view::npos) return std::nullopt;
    const std::string_view rest = std::string_view(unit).substr(1);
    const bool binary = rest.empty() || rest == "IB";
    if (!binary && (rest != "B" || power == 0)) return std::nullopt;
    if (power == 0 && !rest.empty()) return std::nullopt;
    factor = 1;
    for (size_t i = 0; i < power; ++i) factor *= binary ? 1024 : 1000;
  }
  const double bytes = value * factor;
  if (factor <= 0 || !(bytes < 9e18)) return std::nullopt;
  return static_cast<int64_t>(bytes);
}

}  // namespace vlcache
