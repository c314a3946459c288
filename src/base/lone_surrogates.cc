#include "base/lone_surrogates.h"

#include <charconv>
#include <cstdint>

namespace vlcache {
namespace {

constexpr size_t kEscape = 6;  // "\ud83d"

// The code unit of an escape "\uXXXX" at text[i]; 0: there is another text.
uint16_t escaped_unit(std::string_view text, size_t i) {
  const std::string_view escape = text.substr(i, kEscape);
  if (escape.size() < kEscape || !escape.starts_with("\\u")) return 0;
  uint16_t unit = 0;
  const char* const end = escape.data() + kEscape;
  return std::from_chars(escape.data() + 2, end, unit, 16).ptr == end ? unit : 0;
}

bool is_high(uint16_t unit) { return unit >= 0xD800 && unit < 0xDC00; }
bool is_low(uint16_t unit) { return unit >= 0xDC00 && unit < 0xE000; }

}  // namespace

std::string_view with_whole_pairs(std::string_view text, std::string& changed) {
  bool has_halves = false;
  for (size_t i = text.find('\\'); i < text.size(); i = text.find('\\', i)) {
    const uint16_t unit = escaped_unit(text, i);
    if (is_high(unit) && is_low(escaped_unit(text, i + kEscape))) {
      i += 2 * kEscape;
    } else if (is_high(unit) || is_low(unit)) {
      if (!has_halves) changed = text;
      has_halves = true;
      changed.replace(i + 2, 4, "fffd");
      i += kEscape;
    } else {
      i += 2;  // the escaped character, perhaps a backslash, begins no escape
    }
  }
  return has_halves ? std::string_view(changed) : text;
}

}  // namespace vlcache
