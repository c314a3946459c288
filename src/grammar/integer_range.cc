// Digit by digit: while a number is as long as a bound and equal to it so far, the bound limits the next digit.
#include "grammar/integer_range.h"

#include <algorithm>
#include <string>

#include "base/error.h"

namespace vlcache {
namespace {

// Any `n` digits.
int32_t any_digits(Automaton& a, int32_t from, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    const int32_t next = a.add_state();
    a.bytes(from, '0', '9', next);
    from = next;
  }
  return from;
}

void digit(Automaton& a, int32_t from, char low, char high, int32_t to) {
  if (low <= high) a.bytes(from, static_cast<uint8_t>(low), static_cast<uint8_t>(high), to);
}

// Digits of low.size() from `low` to `high`, both of that length.
void same_length(Automaton& a, std::string_view low, std::string_view high, int32_t from, int32_t to) {
  if (low.find_first_not_of('0') == low.npos && high.find_first_not_of('9') == high.npos) {
    a.skip(any_digits(a, from, low.size()), to);
    return;
  }
  const std::string_view low_rest = low.substr(1), high_rest = high.substr(1);
  if (low[0] == high[0]) {
    same_length(a, low_rest, high_rest, a.text(from, low.substr(0, 1)), to);
    return;
  }
  const std::string nines(low_rest.size(), '9'), zeros(low_rest.size(), '0');
  same_length(a, low_rest, nines, a.text(from, low.substr(0, 1)), to);
  same_length(a, zeros, high_rest, a.text(from, high.substr(0, 1)), to);
  if (low[0] + 1 < high[0]) {
    const int32_t between = a.add_state();
    digit(a, from, static_cast<char>(low[0] + 1), static_cast<char>(high[0] - 1), between);
    a.skip(any_digits(a, between, low_rest.size()), to);
  }
}

// 0 <= low <= high.
void natural(Automaton& a, int64_t low, int64_t high, int32_t from, int32_t to) {
  const std::string least = std::to_string(low), most = std::to_string(high);
  for (size_t n = least.size(); n <= most.size(); ++n) {
    const int32_t begin = a.add_state();
    a.skip(from, begin);
    const std::string first = n == 1 ? "0" : "1" + std::string(n - 1, '0');
    same_length(a, n == least.size() ? least : first, n == most.size() ? most : std::string(n, '9'), begin, to);
  }
}

}  // namespace

void integers_between(Automaton& a, int64_t low, int64_t high, int32_t from, int32_t to) {
  CHECK(low <= high && -kMaxRangedInteger <= low && high <= kMaxRangedInteger);
  if (low < 0) natural(a, std::max<int64_t>(1, -high), -low, a.text(from, "-"), to);
  if (high >= 0) natural(a, std::max<int64_t>(0, low), high, from, to);
}

}  // namespace vlcache
