#include "base/exact_json.h"

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "base/ordered_json.h"

namespace vlcache {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr uint8_t kDigits = 0x10;  // the subtype of binary values that hold digits

bool has_digits(const OrderedJson& value) {
  if (value.is_structured()) return std::ranges::any_of(value, has_digits);
  return value.is_binary();
}

void write(const OrderedJson& value, std::string& out) {
  if (value.is_object()) {
    out += '{';
    for (bool first = true; const auto& [key, item] : value.items()) {
      out += first ? "" : ",";
      first = false;
      write(OrderedJson(key), out);
      out += ':';
      write(item, out);
    }
    out += '}';
  } else if (value.is_array()) {
    out += '[';
    for (size_t i = 0; i < value.size(); ++i) {
      out += i == 0 ? "" : ",";
      write(value[i], out);
    }
    out += ']';
  } else {
    const std::string digits = exact_digits(value);
    out += digits.empty() ? value.dump(-1, ' ', false, OrderedJson::error_handler_t::replace) : digits;
  }
}

}  // namespace

OrderedJson parse_exact_json(std::string_view text, std::string_view where, int64_t max_values) {
  return read_ordered_json(text, where, {.max_values = max_values, .big_integers = kDigits});
}

std::string exact_digits(const OrderedJson& value) {
  if (!value.is_binary() || !value.get_binary().has_subtype() || value.get_binary().subtype() != kDigits) return "";
  return {value.get_binary().begin(), value.get_binary().end()};
}

std::string dump_exact_json(const OrderedJson& value) {
  if (!has_digits(value)) return value.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
  std::string out;
  write(value, out);
  return out;
}

OrderedJson with_plain_numbers(OrderedJson value) {
  if (const std::string digits = exact_digits(value); !digits.empty()) return std::strtod(digits.c_str(), nullptr);
  if (value.is_structured()) {
    for (OrderedJson& item : value) item = with_plain_numbers(std::move(item));
  }
  return value;
}

}  // namespace vlcache
