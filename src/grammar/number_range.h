// Number ranges: the decimal texts of the numbers within bounds.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string_view>

#include "grammar/automaton.h"

namespace vlcache {

// Limited like other numbers (json_rules.h): 15 digits before the point and after it.
struct Decimal {
  static constexpr int64_t kOne = 1'000'000'000'000'000;  // one, in units of `fraction`; `whole` is less than this, too

  int64_t whole = 0, fraction = 0;  // both negative, or neither

  // Parses texts such as -12.5, without an exponent; nullopt if there are too many digits.
  static std::optional<Decimal> parse(std::string_view text);
  auto operator<=>(const Decimal&) const = default;
};

class NumberRange {
 public:
  struct Bound {
    Decimal value;
    bool inclusive = true;
  };
  // Of several bounds the tightest counts.
  void at_least(const Decimal& value, bool inclusive);
  void at_most(const Decimal& value, bool inclusive);
  bool bounded() const { return bounded_; }
  const Bound& low() const { return low_; }
  const Bound& high() const { return high_; }

 private:
  Bound low_{{-(Decimal::kOne - 1), -(Decimal::kOne - 1)}, true}, high_{{Decimal::kOne - 1, Decimal::kOne - 1}, true};
  bool bounded_ = false;
};

// No leading zeros, no exponents. False: no number is within the bounds.
bool integers_within(Automaton& automaton, const NumberRange& range, int32_t from, int32_t to);
bool numbers_within(Automaton& automaton, const NumberRange& range, int32_t from, int32_t to);

}  // namespace vlcache
