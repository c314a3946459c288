// Digit by digit: while a number is as long as a bound and equal to it so far, the bound limits the next digit.
#include "grammar/number_range.h"

#include <algorithm>
#include <map>
#include <string>
#include <tuple>

#include "grammar/json_rules.h"

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

// Digits before the point: at least as many as the bounds have.
size_t n_whole_digits(const NumberRange& range) {
  size_t n = kWholeDigits;
  for (const auto& bound : {range.low(), range.high()}) {
    if (bound) n = std::max(n, bound->value.whole.size());
  }
  return std::min<size_t>(n, 40);
}

std::string nines(size_t n) { return std::string(n, '9'); }
std::string power_of_10(size_t n) { return "1" + std::string(n, '0'); }

bool less(std::string_view a, std::string_view b) { return a.size() != b.size() ? a.size() < b.size() : a < b; }

std::string plus_one(std::string digits) {
  for (size_t i = digits.size(); i > 0; --i) {
    if (digits[i - 1] != '9') {
      ++digits[i - 1];
      return digits;
    }
    digits[i - 1] = '0';
  }
  return "1" + digits;
}

std::string minus_one(std::string digits) {  // of at least 1
  for (size_t i = digits.size(); i > 0; --i) {
    if (digits[i - 1] != '0') {
      --digits[i - 1];
      break;
    }
    digits[i - 1] = '9';
  }
  return digits.size() > 1 && digits[0] == '0' ? digits.substr(1) : digits;
}

// Texts of the integers from `least` to `most`, digits without leading zeros, least <= most.
void natural(Automaton& a, const std::string& least, const std::string& most, int32_t from, int32_t to) {
  const int32_t begin = a.add_state();
  a.skip(from, begin);
  if (least.size() == most.size()) {
    same_length(a, least, most, begin, to);
    return;
  }
  same_length(a, least, nines(least.size()), begin, to);
  same_length(a, power_of_10(most.size() - 1), most, begin, to);
  if (least.size() + 1 == most.size()) return;
  int32_t at = a.add_state();
  a.bytes(begin, '1', '9', at);
  at = any_digits(a, at, least.size());
  for (size_t n = least.size() + 1;; ++n) {
    a.skip(at, to);
    if (n == most.size() - 1) return;
    at = any_digits(a, at, 1);
  }
}

// Both at least 0; no high: unlimited.
struct Magnitudes {
  NumberRange::Bound low;
  std::optional<NumberRange::Bound> high;
  size_t n_whole = kWholeDigits;  // digits before the point, at most
};

// The text after the digits of an integer that equals a bound: a point and digits.
class Fraction {
 public:
  Fraction(Automaton& automaton, const NumberRange::Bound* low, const NumberRange::Bound* high, size_t n_digits)
      : a_(automaton), low_(low), high_(high) {
    if (low != nullptr) low_digits_ = low->value.fraction;
    if (high != nullptr) high_digits_ = high->value.fraction;
    n_digits_ = std::max({n_digits, low_digits_.size(), high_digits_.size()});
  }

  void add(int32_t from, int32_t to) {
    if (may_end(0, low_ != nullptr, high_ != nullptr)) a_.skip(from, to);
    if (n_digits_ == 0) return;
    const int32_t begin = a_.text(from, ".");
    known_[{0, low_ != nullptr, high_ != nullptr}] = begin;
    grow(begin, 0, low_ != nullptr, high_ != nullptr, to);
  }

 private:
  // Whether the text may end after n digits; `low`: equal to that bound so far.
  bool may_end(size_t n, bool low, bool high) const {
    if (low && (n < low_digits_.size() || !low_->inclusive)) return false;
    return !high || n < high_digits_.size() || high_->inclusive;
  }

  void grow(int32_t from, size_t n, bool low, bool high, int32_t to) {
    if (n == n_digits_) return;
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
  std::string low_digits_, high_digits_;
  size_t n_digits_;
  std::map<std::tuple<size_t, bool, bool>, int32_t> known_;
};

// Numbers of one digit, not 0, before the point and an exponent, where no digits can exceed a bound.
void with_exponent(Automaton& a, const Magnitudes& m, int32_t from, int32_t to) {
  constexpr int kMost = 300;
  if (m.high && m.high->value.is_zero()) return;
  const int32_t first = a.add_state();
  a.bytes(from, '1', '9', first);
  if (m.low.value.is_zero()) {
    // 9.99...e-N rounds to 10^(1-N) at most, which an exclusive bound may be.
    int least = 1;
    if (m.high && m.high->value.whole == "0") {
      const size_t zeros = std::min(m.high->value.fraction.find_first_not_of('0'), m.high->value.fraction.size());
      least = static_cast<int>(zeros) + 2;
    }
    if (m.high && !m.high->inclusive) ++least;
    json_exponent(a, first, /*negative=*/true, least, kMost, to);
  }
  int least = static_cast<int>(m.low.value.whole.size()), most = kMost;  // 10^size > low
  if (m.low.value.whole == "0" && m.low.value.fraction.empty()) least = 0;
  if (m.high)
    most = static_cast<int>(std::min<size_t>(m.high->value.whole.size(), kMost)) - (m.high->inclusive ? 2 : 3);
  json_exponent(a, first, /*negative=*/false, least, most, to);
}

bool magnitudes(Automaton& a, const Magnitudes& m, int32_t from, int32_t to, int n_fraction) {
  const Decimal& low = m.low.value;
  if (m.high && (low > m.high->value || (low == m.high->value && !(m.low.inclusive && m.high->inclusive))))
    return false;
  if (low.whole.size() > m.n_whole) {
    if (n_fraction < 0) with_exponent(a, m, from, to);
    return true;
  }
  const bool has_high = m.high && m.high->value.whole.size() <= m.n_whole;
  const std::string last = has_high ? m.high->value.whole : nines(m.n_whole);
  const NumberRange::Bound* high = has_high ? &*m.high : nullptr;
  const std::string next = plus_one(low.whole);
  // Beside an exclusive bound, what a double holds exactly: more digits could be rounded to the bound.
  const auto n_digits = [&](const NumberRange::Bound* b) -> size_t {
    if (n_fraction >= 0) return static_cast<size_t>(n_fraction);
    if (b == nullptr || b->inclusive) return kFractionDigits;
    return 15 - std::min<size_t>(15, b->value.whole.size());
  };
  const size_t below_high = n_digits(high),
               above_low = less(next, last) ? n_digits(&m.low) : std::min(n_digits(&m.low), below_high);
  const auto with_fraction = [&](const std::string& first, const std::string& end, Fraction fraction) {
    const int32_t begin = a.add_state(), after = a.add_state();
    a.skip(from, begin);
    natural(a, first, end, begin, after);
    fraction.add(after, to);
  };
  if (n_fraction < 0) with_exponent(a, m, from, to);
  if (low.whole == last) {
    with_fraction(low.whole, low.whole, Fraction(a, &m.low, high, above_low));
    return true;
  }
  with_fraction(low.whole, low.whole, Fraction(a, &m.low, nullptr, above_low));
  if (less(next, last)) with_fraction(next, minus_one(last), Fraction(a, nullptr, nullptr, below_high));
  with_fraction(last, last, Fraction(a, nullptr, high, below_high));
  return true;
}

NumberRange::Bound negated(const NumberRange::Bound& bound) { return {-bound.value, bound.inclusive}; }

// The integers of a range: their magnitudes with either sign, digits.
struct Integers {
  struct Part {
    std::string least, most;
  };
  std::optional<Part> negative, natural;
};

Integers integers_of(const NumberRange& range, size_t n_digits) {
  // The least integer >= x or > x, for x >= 0; likewise the greatest, which may not exist.
  const auto ceiling = [](const NumberRange::Bound& b) {
    return b.value.fraction.empty() && b.inclusive ? b.value.whole : plus_one(b.value.whole);
  };
  const auto floor = [](const NumberRange::Bound& b) -> std::optional<std::string> {
    if (!b.value.fraction.empty() || b.inclusive) return b.value.whole;
    if (b.value.whole == "0") return std::nullopt;
    return minus_one(b.value.whole);
  };
  const Decimal zero;
  const auto &low = range.low(), &high = range.high();
  Integers out;
  const auto part = [&](const std::string& least,
                        const std::optional<std::string>& most) -> std::optional<Integers::Part> {
    if (!most || less(*most, least) || least.size() > n_digits) return std::nullopt;
    return Integers::Part{least, most->size() > n_digits ? nines(n_digits) : *most};
  };
  if (!high || high->value >= zero) {
    const std::string least = low && low->value >= zero ? ceiling(*low) : "0";
    out.natural = part(least, high ? floor(*high) : nines(n_digits));
  }
  if (!low || low->value < zero) {
    std::string least = high && high->value <= zero ? ceiling(negated(*high)) : "1";
    if (least == "0") least = "1";
    out.negative = part(least, low ? floor(negated(*low)) : nines(n_digits));
  }
  return out;
}

// Digits of a number from `least` to `most` that leave a remainder of 0.
class Multiples {
 public:
  Multiples(Automaton& a, int64_t divisor, int32_t to) : a_(a), divisor_(divisor), to_(to) {}

  // Of one length.
  void add(const std::string& least, const std::string& most, int32_t from) {
    const int32_t begin = a_.add_state();
    a_.skip(from, begin);
    bounded(least, most, /*low=*/true, /*high=*/true, 0, 0, begin);
  }

 private:
  void bounded(const std::string& least, const std::string& most, bool low, bool high, size_t i, int64_t rest,
               int32_t from) {
    if (!low && !high) {
      a_.skip(from, any(least.size() - i, rest));
      return;
    }
    if (i == least.size()) {
      if (rest == 0) a_.skip(from, to_);
      return;
    }
    const char first = low ? least[i] : '0', last = high ? most[i] : '9';
    for (char c = first; c <= last; ++c) {
      const int32_t next = a_.text(from, std::string_view(&c, 1));
      bounded(least, most, low && c == first, high && c == last, i + 1, (rest * 10 + (c - '0')) % divisor_, next);
    }
  }

  // n digits after those that leave `rest`.
  int32_t any(size_t n, int64_t rest) {
    const auto [known, is_new] = known_.try_emplace({n, rest}, 0);
    if (!is_new) return known->second;
    const int32_t state = known->second = a_.add_state();
    if (n == 0) {
      if (rest == 0) a_.skip(state, to_);
      return state;
    }
    for (char c = '0'; c <= '9'; ++c) {
      a_.bytes(state, static_cast<uint8_t>(c), static_cast<uint8_t>(c), any(n - 1, (rest * 10 + (c - '0')) % divisor_));
    }
    return state;
  }

  Automaton& a_;
  int64_t divisor_;
  int32_t to_;
  std::map<std::pair<size_t, int64_t>, int32_t> known_;
};

}  // namespace

std::optional<Decimal> Decimal::parse(std::string_view text) {
  constexpr int64_t kMost = 400;
  Decimal out;
  out.negative = text.starts_with('-');
  if (out.negative) text.remove_prefix(1);
  const size_t e = std::min(text.find_first_of("eE"), text.size());
  int64_t exponent = 0;
  if (e < text.size()) {
    const std::string digits(text.substr(e + 1));
    const size_t sign = digits.starts_with('-') || digits.starts_with('+') ? 1 : 0;
    if (digits.size() == sign || digits.size() > 5 || digits.find_first_not_of("0123456789", sign) != digits.npos) {
      return std::nullopt;
    }
    exponent = std::stoll(digits);
  }
  const std::string_view mantissa = text.substr(0, e);
  const size_t point = std::min(mantissa.find('.'), mantissa.size());
  std::string digits(mantissa.substr(0, point));
  if (point < mantissa.size()) digits += mantissa.substr(point + 1);
  if (point == 0 || digits.find_first_not_of("0123456789") != digits.npos) return std::nullopt;
  int64_t whole = static_cast<int64_t>(point) + exponent;  // digits before the point
  if (whole > kMost || whole < -kMost || std::ssize(digits) > kMost) return std::nullopt;
  if (whole < 0) digits.insert(0, static_cast<size_t>(-whole), '0');
  whole = std::max<int64_t>(whole, 0);
  if (whole > std::ssize(digits)) digits.resize(static_cast<size_t>(whole), '0');
  out.whole = digits.substr(0, static_cast<size_t>(whole));
  out.whole.erase(0, std::min(out.whole.find_first_not_of('0'), out.whole.size()));
  if (out.whole.empty()) out.whole = "0";
  out.fraction = digits.substr(static_cast<size_t>(whole));
  out.fraction.erase(out.fraction.find_last_not_of('0') + 1);
  if (out.is_zero()) out.negative = false;
  return out;
}

Decimal Decimal::operator-() const {
  Decimal out = *this;
  out.negative = !negative && !is_zero();
  return out;
}

std::strong_ordering Decimal::operator<=>(const Decimal& other) const {
  if (negative != other.negative) return negative ? std::strong_ordering::less : std::strong_ordering::greater;
  const auto compared = [](const Decimal& a, const Decimal& b) -> std::strong_ordering {
    if (a.whole.size() != b.whole.size()) return a.whole.size() <=> b.whole.size();
    if (a.whole != b.whole) return a.whole < b.whole ? std::strong_ordering::less : std::strong_ordering::greater;
    if (a.fraction == b.fraction) return std::strong_ordering::equal;
    return a.fraction < b.fraction ? std::strong_ordering::less : std::strong_ordering::greater;
  };
  return negative ? compared(other, *this) : compared(*this, other);
}

void NumberRange::at_least(const Decimal& value, bool inclusive) {
  if (!low_ || value > low_->value) {
    low_ = {value, inclusive};
  } else if (value == low_->value) {
    low_->inclusive = low_->inclusive && inclusive;
  }
}

void NumberRange::at_most(const Decimal& value, bool inclusive) {
  if (!high_ || value < high_->value) {
    high_ = {value, inclusive};
  } else if (value == high_->value) {
    high_->inclusive = high_->inclusive && inclusive;
  }
}

bool integers_within(Automaton& a, const NumberRange& range, int32_t from, int32_t to) {
  const Integers integers = integers_of(range, n_whole_digits(range));
  if (integers.negative) natural(a, integers.negative->least, integers.negative->most, a.text(from, "-"), to);
  if (integers.natural) natural(a, integers.natural->least, integers.natural->most, from, to);
  return integers.negative || integers.natural;
}

std::optional<bool> multiples_within(Automaton& a, const NumberRange& range, int64_t divisor, int32_t from,
                                     int32_t to) {
  // A state for each remainder and number of digits.
  constexpr int64_t kMostDivisor = 2000;
  constexpr size_t kDigits = 15;
  if (divisor > kMostDivisor) return std::nullopt;
  const Integers integers = integers_of(range, kDigits);
  Multiples multiples(a, divisor, to);
  const auto add = [&](const Integers::Part& part, int32_t begin) {
    for (size_t n = part.least.size(); n <= part.most.size(); ++n) {
      const std::string first = n == 1 ? "0" : power_of_10(n - 1);
      multiples.add(n == part.least.size() ? part.least : first, n == part.most.size() ? part.most : nines(n), begin);
    }
  };
  if (integers.negative) add(*integers.negative, a.text(from, "-"));
  if (integers.natural) add(*integers.natural, from);
  return integers.negative || integers.natural;
}

bool numbers_within(Automaton& a, const NumberRange& range, int32_t from, int32_t to, int n_fraction) {
  const auto &low = range.low(), &high = range.high();
  const Decimal zero;
  const NumberRange::Bound from_zero{zero, true};
  bool any = false;
  if (!low || low->value < zero) {
    Magnitudes m{from_zero, std::nullopt, n_whole_digits(range)};
    if (high && high->value <= zero) m.low = negated(*high);
    if (low) m.high = negated(*low);
    any = magnitudes(a, m, a.text(from, "-"), to, n_fraction);
  }
  if (!high || high->value >= zero) {
    any = magnitudes(a, {low && low->value >= zero ? *low : from_zero, high, n_whole_digits(range)}, from, to,
                     n_fraction) ||
          any;
  }
  return any;
}

}  // namespace vlcache
