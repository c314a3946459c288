#include "base/exact_json.h"

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/json.h"

namespace vlcache {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr uint8_t kDigits = 0x10;  // the subtype of binary values that hold digits

// The integers beyond 64 bits of a text, in order; the parser gives them as floats.
class BigIntegers : public nlohmann::json_sax<OrderedJson> {
 public:
  std::vector<std::string> found;  // of every float: its digits, or "" where it is none

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t& text) override {
    const bool integer = text.find_first_of(".eE") == text.npos;
    found.push_back(integer ? text : "");
    any = any || integer;
    return true;
  }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(size_t) override { return true; }
  bool key(string_t&) override { return true; }
  bool end_object() override { return true; }
  bool start_array(size_t) override { return true; }
  bool end_array() override { return true; }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception&) override { return false; }

  bool any = false;
};

// Whether a text may have an integer of 19 digits or more, so that most texts are read once.
bool may_have_big(std::string_view text) {
  size_t n = 0;
  return std::ranges::any_of(text, [&](char c) { return (n = c >= '0' && c <= '9' ? n + 1 : 0) >= 19; });
}

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

OrderedJson parse_exact_json(std::string_view text, std::string_view where) {
  OrderedJson value = parse_ordered_json(text, where);
  if (!may_have_big(text)) return value;
  BigIntegers big;
  OrderedJson::sax_parse(text.begin(), text.end(), &big);
  if (!big.any) return value;
  // A key that is there twice has one value in the end: then the floats cannot be told apart.
  size_t n_floats = 0;
  const auto count = [&](const auto& self, const OrderedJson& v) -> void {
    n_floats += v.is_number_float();
    if (v.is_structured()) {
      for (const OrderedJson& item : v) self(self, item);
    }
  };
  count(count, value);
  if (n_floats != big.found.size()) return value;
  size_t next = 0;
  const auto put = [&](const auto& self, OrderedJson& v) -> void {
    if (v.is_number_float()) {
      const std::string& digits = big.found[next++];
      if (!digits.empty()) v = OrderedJson::binary({digits.begin(), digits.end()}, kDigits);
    } else if (v.is_structured()) {
      for (OrderedJson& item : v) self(self, item);
    }
  };
  put(put, value);
  return value;
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
