// Number ranges: the decimal texts of the numbers within bounds.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "grammar/automaton.h"

namespace vlcache {

// A number of any size, exactly.
struct Decimal {
  bool negative = false;
  std::string whole = "0";  // digits before the point, no leading zeros
  std::string fraction;     // digits after it, no trailing zeros

  // Parses texts such as -12.5 or 1e-06; nullopt if it is none, or beyond 400 digits.
  static std::optional<Decimal> parse(std::string_view text);
  bool is_zero() const { return whole == "0" && fraction.empty(); }
  Decimal operator-() const;
  std::strong_ordering operator<=>(const Decimal& other) const;
  bool operator==(const Decimal& other) const { return (*this <=> other) == 0; }
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
  // Beyond these there is no bound.
  const std::optional<Bound>& low() const { return low_; }
  const std::optional<Bound>& high() const { return high_; }
  bool bounded() const { return low_ || high_; }

 private:
  std::optional<Bound> low_, high_;
};

// No leading zeros, at most kWholeDigits digits before the point. Integers have no exponents. False: no number is
// within the bounds.
bool integers_within(Automaton& automaton, const NumberRange& range, int32_t from, int32_t to);
// n_fraction: digits after the point, without an exponent; -1: any number.
bool numbers_within(Automaton& automaton, const NumberRange& range, int32_t from, int32_t to, int n_fraction = -1);
// Integers that are multiples of `divisor`, of at most 15 digits. nullopt: their automaton would be too large.
std::optional<bool> multiples_within(Automaton& automaton, const NumberRange& range, int64_t divisor, int32_t from,
                                     int32_t to);

}  // namespace vlcache
