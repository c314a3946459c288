// Reads and writes numbers as Python does.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace vlcache::jinja {

std::string float_repr(double d);                                       // shortest text that reads back the same
std::optional<int64_t> parse_int(std::string_view text, int64_t base);  // int(text, base); throws kLimit beyond 64 bits
std::optional<double> parse_float(std::string_view text);               // float(text)
int64_t float_to_int(double d);             // int(d); throws for inf, NaN and beyond 64 bits
double round_to(double d, int64_t digits);  // round(d, digits)
int64_t checked_add(int64_t a, int64_t b);  // throw kLimit beyond 64 bits
int64_t checked_sub(int64_t a, int64_t b);
int64_t checked_mul(int64_t a, int64_t b);
int64_t floor_div(int64_t a, int64_t b);  // b != 0
int64_t floor_mod(int64_t a, int64_t b);

}  // namespace vlcache::jinja
