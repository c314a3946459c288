// Digit by digit: while a number is as long as a bound and equal to it so far, the bound limits the next digit.
#include "grammar/number_range.h"

#include <algorithm>
#include <map>
#include <string>
#include <tuple>

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

// Digits of numbers from `low` to `high`, both of the same length.
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

// 0 <= low and high.
struct Magnitudes {
  NumberRange::Bound low, high;
};

// What may follow the digits of an integer that equals a bound: a point and digits.
class Fraction {
 public:
  Fraction(Automaton& automaton, const NumberRange::Bound* low, const NumberRange::Bound* high)
      : a_(automaton), low_(low), high_(high), low_digits_(digits_of(low)), high_digits_(digits_of(high)) {}

  void add(int32_t from, int32_t to) {
    if (may_end(0, low_ != nullptr, high_ != nullptr)) a_.skip(from, to);
    const int32_t begin = a_.text(from, ".");
    known_[{0, low_ != nullptr, high_ != nullptr}] = begin;
    grow(begin, 0, low_ != nullptr, high_ != nullptr, to);
  }

 private:
  static constexpr size_t kDigits = 15;

  static std::string digits_of(const NumberRange::Bound* bound) {
    if (bound == nullptr) return "";
    std::string digits = std::to_string(bound->value.fraction);
    digits.insert(0, kDigits - digits.size(), '0');
    digits.erase(digits.find_last_not_of('0') + 1);
    return digits;
  }

  // Whether the text may end after n digits; `low`: equal to that bound so far.
  bool may_end(size_t n, bool low, bool high) const {
    if (low && (n < low_digits_.size() || !low_->inclusive)) return false;
    return !high || n < high_digits_.size() || high_->inclusive;
  }

  void grow(int32_t from, size_t n, bool low, bool high, int32_t to) {
    if (n == kDigits) return;
    const char least = low && n < low_digits_.size() ? low_digits_[n] : '0';
    const char most = !high ? '9' : n < high_digits_.size() ? high_digits_[n] : '0';
    for (char c = least; c <= most; ++c) {
      const bool still_low = low && c == least, still_high = high && c == most;
      const auto [state, is_new] = known_.try_emplace({n + 1, still_low, still_high}, 0);
      if (is_new) state->second = a_.add_state();
      const int32_t next = state->second;
      a_.bytes(from, static_cast<uint8_t>(c), static_cast<uint8_t>(c), next);
      if (!is_new) continue;
      if (may_end(n + 1, still_low, still_high)) a_.skip(next, to);
      grow(next, n + 1, still_low, still_high, to);
    }
  }

  Automaton& a_;
  const NumberRange::Bound *low_, *high_;
  std::string low_digits_, high_digits_;  // no trailing zeros
  std::map<std::tuple<size_t, bool, bool>, int32_t> known_;
};

bool magnitudes(Automaton& a, const Magnitudes& m, int32_t from, int32_t to) {
  const Decimal low = m.low.value, high = m.high.value;
  if (low > high || (low == high && !(m.low.inclusive && m.high.inclusive))) return false;
  const auto with_fraction = [&](int64_t first, int64_t last, const NumberRange::Bound* least,
                                 const NumberRange::Bound* most) {
    const int32_t begin = a.add_state(), after = a.add_state();
    a.skip(from, begin);
    natural(a, first, last, begin, after);
    Fraction(a, least, most).add(after, to);
  };
  if (low.whole == high.whole) {
    with_fraction(low.whole, low.whole, &m.low, &m.high);
    return true;
  }
  with_fraction(low.whole, low.whole, &m.low, nullptr);
  if (low.whole + 1 < high.whole) with_fraction(low.whole + 1, high.whole - 1, nullptr, nullptr);
  with_fraction(high.whole, high.whole, nullptr, &m.high);
  return true;
}

NumberRange::Bound negated(const NumberRange::Bound& bound) {
  return {{-bound.value.whole, -bound.value.fraction}, bound.inclusive};
}

}  // namespace

std::optional<Decimal> Decimal::parse(std::string_view text) {
  const bool negative = text.starts_with('-');
  if (negative) text.remove_prefix(1);
  const size_t point = std::min(text.find('.'), text.size());
  const std::string whole(text.substr(0, point));
  std::string fraction(point < text.size() ? text.substr(point + 1) : "");
  const auto is_short = [](const std::string& digits) {
    return digits.size() <= 15 && digits.find_first_not_of("0123456789") == digits.npos;
  };
  if (whole.empty() || !is_short(whole) || !is_short(fraction)) return std::nullopt;
  fraction.resize(15, '0');
  const int64_t sign = negative ? -1 : 1;
  return Decimal{sign * std::stoll(whole), sign * std::stoll(fraction)};
}

void NumberRange::at_least(const Decimal& value, bool inclusive) {
  bounded_ = true;
  if (value > low_.value) low_ = {value, inclusive};
  if (value == low_.value) low_.inclusive = low_.inclusive && inclusive;
}

void NumberRange::at_most(const Decimal& value, bool inclusive) {
  bounded_ = true;
  if (value < high_.value) high_ = {value, inclusive};
  if (value == high_.value) high_.inclusive = high_.inclusive && inclusive;
}

bool integers_within(Automaton& a, const NumberRange& range, int32_t from, int32_t to) {
  const NumberRange::Bound &below = range.low(), &above = range.high();
  const bool not_low = below.value.fraction == 0 && !below.inclusive;
  const bool not_high = above.value.fraction == 0 && !above.inclusive;
  const int64_t low = below.value.whole + (below.value.fraction > 0 || not_low ? 1 : 0);
  const int64_t high = above.value.whole - (above.value.fraction < 0 || not_high ? 1 : 0);
  if (low > high) return false;
  if (low < 0) natural(a, std::max<int64_t>(1, -high), -low, a.text(from, "-"), to);
  if (high >= 0) natural(a, std::max<int64_t>(0, low), high, from, to);
  return true;
}

bool numbers_within(Automaton& a, const NumberRange& range, int32_t from, int32_t to) {
  const NumberRange::Bound &low = range.low(), &high = range.high();
  const Decimal zero;
  const NumberRange::Bound from_zero{zero, true};
  bool any = false;
  if (low.value < zero) {
    const NumberRange::Bound least = high.value > zero ? from_zero : negated(high);
    any = magnitudes(a, {least, negated(low)}, a.text(from, "-"), to);
  }
  if (high.value >= zero) {
    any = magnitudes(a, {low.value < zero ? from_zero : low, high}, from, to) || any;
  }
  return any;
}

}  // namespace vlcache
