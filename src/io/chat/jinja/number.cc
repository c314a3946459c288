#include "io/chat/jinja/number.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <limits>

#include "io/chat/jinja/text.h"
#include "io/chat/jinja/value.h"

namespace vlcache::jinja {
namespace {

[[noreturn]] void fail_overflow() { fail_limit("an integer beyond 64 bits"); }

std::string lower_ascii(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  return out;
}

// Removes the underscores Python allows between digits; returns an empty text if one stands elsewhere.
std::string drop_underscores(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      out += text[i];
      continue;
    }
    const auto digit = [&](size_t k) {
      return k < text.size() && std::isxdigit(static_cast<unsigned char>(text[k])) != 0;
    };
    if (i == 0 || !digit(i - 1) || !digit(i + 1)) return {};
  }
  return out;
}

}  // namespace

std::string float_repr(double d) {
  if (std::isnan(d)) return "nan";
  if (std::isinf(d)) return d > 0 ? "inf" : "-inf";
  std::array<char, 40> buffer;
  const auto [end, ec] = std::to_chars(buffer.data(), buffer.data() + buffer.size(), d, std::chars_format::scientific);
  (void)ec;
  const std::string_view text(buffer.data(), static_cast<size_t>(end - buffer.data()));
  const size_t e = text.find('e');
  const int exponent = std::atoi(std::string(text.substr(e + 1)).c_str());
  std::string digits;
  for (const char c : text.substr(0, e)) {
    if (c >= '0' && c <= '9') digits += c;
  }
  std::string out = std::signbit(d) ? "-" : "";
  const int n = static_cast<int>(digits.size());
  if (exponent < -4 || exponent >= 16) {  // Python switches to the exponent form here
    out += digits.substr(0, 1);
    if (n > 1) out += "." + digits.substr(1);
    const std::string shown = std::to_string(std::abs(exponent));
    return out + (exponent < 0 ? "e-" : "e+") + (shown.size() < 2 ? "0" : "") + shown;
  }
  if (exponent < 0) return out + "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  if (n <= exponent + 1) return out + digits + std::string(static_cast<size_t>(exponent + 1 - n), '0') + ".0";
  return out + digits.substr(0, static_cast<size_t>(exponent + 1)) + "." +
         digits.substr(static_cast<size_t>(exponent + 1));
}

std::optional<int64_t> parse_int(std::string_view text, int64_t base) {
  if (base != 0 && (base < 2 || base > 36)) return std::nullopt;
  std::string s = drop_underscores(lower_ascii(strip(text, nullptr, Side::kBoth)));
  bool negative = false;
  size_t i = 0;
  if (i < s.size() && (s[i] == '+' || s[i] == '-')) negative = s[i++] == '-';
  if (i + 1 < s.size() && s[i] == '0') {
    const int64_t prefix = s[i + 1] == 'x' ? 16 : s[i + 1] == 'o' ? 8 : s[i + 1] == 'b' ? 2 : 0;
    if (prefix != 0 && (base == 0 || base == prefix)) {
      base = prefix;
      i += 2;
    } else if (base == 0 && s.find_first_not_of('0', i) != std::string::npos) {
      return std::nullopt;  // "012" is no literal
    }
  }
  if (base == 0) base = 10;
  if (i >= s.size()) return std::nullopt;
  int64_t value = 0;
  bool overflow = false;
  for (; i < s.size(); ++i) {
    const int digit = s[i] >= '0' && s[i] <= '9' ? s[i] - '0' : s[i] >= 'a' && s[i] <= 'z' ? s[i] - 'a' + 10 : 99;
    if (digit >= base) return std::nullopt;
    overflow = overflow || __builtin_mul_overflow(value, base, &value) ||
               (negative ? __builtin_sub_overflow(value, digit, &value) : __builtin_add_overflow(value, digit, &value));
  }
  if (overflow) fail_overflow();
  return value;
}

std::optional<double> parse_float(std::string_view text) {
  std::string s = drop_underscores(lower_ascii(strip(text, nullptr, Side::kBoth)));
  bool negative = false;
  size_t i = 0;
  if (i < s.size() && (s[i] == '+' || s[i] == '-')) negative = s[i++] == '-';
  const std::string_view rest = std::string_view(s).substr(i);
  double value;
  if (rest == "inf" || rest == "infinity") {
    value = std::numeric_limits<double>::infinity();
  } else if (rest == "nan") {
    value = std::numeric_limits<double>::quiet_NaN();
  } else {
    if (rest.empty() || !(rest[0] == '.' || (rest[0] >= '0' && rest[0] <= '9'))) return std::nullopt;
    const auto [end, ec] = std::from_chars(rest.data(), rest.data() + rest.size(), value);
    if (end != rest.data() + rest.size()) return std::nullopt;
    if (ec == std::errc::result_out_of_range) value = std::strtod(std::string(rest).c_str(), nullptr);
  }
  return negative ? -value : value;
}

int64_t float_to_int(double d) {
  if (std::isnan(d)) fail("cannot convert float NaN to integer");
  if (std::isinf(d)) fail("cannot convert float infinity to integer");
  if (!(std::abs(d) < 9223372036854775808.0)) fail_overflow();
  return static_cast<int64_t>(d);
}

double round_to(double d, int64_t digits) {
  if (!std::isfinite(d) || digits > 400) return d;
  if (digits < -400) return std::copysign(0.0, d);
  if (digits < 0) {
    const double scale = std::pow(10.0, static_cast<double>(-digits));
    return std::isinf(scale) ? std::copysign(0.0, d) : std::nearbyint(d / scale) * scale;
  }
  // printf rounds the exact binary value half to even, as Python's correctly rounded round() does.
  std::array<char, 800> buffer;
  std::snprintf(buffer.data(), buffer.size(), "%.*f", static_cast<int>(digits), d);
  return std::strtod(buffer.data(), nullptr);
}

int64_t checked_add(int64_t a, int64_t b) {
  int64_t r;
  if (__builtin_add_overflow(a, b, &r)) fail_overflow();
  return r;
}

int64_t checked_sub(int64_t a, int64_t b) {
  int64_t r;
  if (__builtin_sub_overflow(a, b, &r)) fail_overflow();
  return r;
}

int64_t checked_mul(int64_t a, int64_t b) {
  int64_t r;
  if (__builtin_mul_overflow(a, b, &r)) fail_overflow();
  return r;
}

int64_t floor_div(int64_t a, int64_t b) {
  if (b == -1) return checked_sub(0, a);
  const int64_t q = a / b;
  return a % b != 0 && (a % b < 0) != (b < 0) ? q - 1 : q;
}

int64_t floor_mod(int64_t a, int64_t b) {
  if (b == -1) return 0;
  const int64_t r = a % b;
  return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}

}  // namespace vlcache::jinja
