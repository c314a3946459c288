// The decimal texts of the numbers within bounds.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string_view>

#include "grammar/automaton.h"

namespace vlcache {

// As long as other numbers are (json_rules.h): 15 digits before the point and behind it.
struct Decimal {
  static constexpr int64_t kOne = 1'000'000'000'000'000;  // of `fraction`; `whole` is less, too

  int64_t whole = 0, fraction = 0;  // both negative, or neither

  // Of -12.5 and the like, no exponent; none if it is longer than that.
  static std::optional<Decimal> parse(std::string_view text);
  auto operator<=>(const Decimal&) const = default;
};

class NumberRange {
 public:
  struct Bound {
    Decimal value;
    bool inclusive = true;
  };
  // Of several, the tightest counts.
  void at_least(const Decimal& value, bool inclusive);
  void at_most(const Decimal& value, bool inclusive);
  bool bounded() const { return bounded_; }
  const Bound& low() const { return low_; }
  const Bound& high() const { return high_; }

 private:
  Bound low_{{-(Decimal::kOne - 1), -(Decimal::kOne - 1)}, true}, high_{{Decimal::kOne - 1, Decimal::kOne - 1}, true};
  bool bounded_ = false;
};

// No leading zeros, no exponents. False: there are none.
bool integers_within(Automaton& automaton, const NumberRange& range, int32_t from, int32_t to);
bool numbers_within(Automaton& automaton, const NumberRange& range, int32_t from, int32_t to);

}  // namespace vlcache
