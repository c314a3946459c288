// The methods of str (and of Markup, whose arguments are escaped and whose results are Markup again).
#include <algorithm>
#include <array>
#include <functional>
#include <unordered_map>

#include "base/escape_html.h"
#include "io/chat/jinja/number.h"
#include "io/chat/jinja/runtime.h"
#include "io/chat/jinja/text.h"

namespace vlcache::jinja {
namespace {

// One call of a str method.
struct Call {
  Runtime& runtime;
  const Value& self;
  const std::string& name;
  const Args& args;

  const std::string& text() const { return self.text(); }
  bool markup() const { return self.is_markup(); }
  Value result(std::string&& s) const { return runtime.new_string(std::move(s), markup()); }
  Value result(std::string_view s) const { return runtime.new_string(std::string(s), markup()); }
  Value empty() const { return runtime.new_string({}, markup()); }
  Value list(const std::vector<std::string_view>& parts) const {
    runtime.charge_bytes(static_cast<int64_t>(parts.size() * (sizeof(Value) + sizeof(String))));
    std::vector<Value> items;
    items.reserve(parts.size());
    for (const std::string_view part : parts) items.push_back(Value::string(std::string(part), markup()));
    return runtime.new_list(std::move(items));
  }
  Bound bind(std::initializer_list<std::string_view> names, size_t n_required) const {
    return Bound(name, args, names, n_required);
  }
  void none() const { bind({}, 0); }
};

const std::string& need_text(const Call& call, const Value& v) {
  if (v.is_undefined()) fail_undefined(v);
  if (!v.is_string()) fail(call.name + "() argument must be str, not " + type_name(v));
  return v.text();
}

// An argument that goes into the result: escaped when the result is Markup.
std::string inserted(const Call& call, const Value& v) {
  const std::string& text = need_text(call, v);
  return call.markup() && !v.is_markup() ? escape_html(text) : text;
}

Value do_strip(const Call& call) {
  const Bound b = call.bind({"chars"}, 0);
  const Side side = call.name == "lstrip" ? Side::kLeft : call.name == "rstrip" ? Side::kRight : Side::kBoth;
  const Value chars = b.get(0, Value::none());
  if (chars.is_none()) return call.result(strip(call.text(), nullptr, side));
  const std::string_view set = need_text(call, chars);
  call.runtime.charge_steps(static_cast<int64_t>(set.size()) / 16);
  return call.result(strip(call.text(), &set, side));
}

Value do_split(const Call& call) {
  const Bound b = call.bind({"sep", "maxsplit"}, 0);
  const Value separator = b.get(0, Value::none());
  const int64_t max_splits = b.integer(1, -1);
  std::string_view sep;
  if (!separator.is_none()) {
    sep = need_text(call, separator);
    if (sep.empty()) fail("empty separator");
  }
  const std::string_view* used = separator.is_none() ? nullptr : &sep;
  return call.list(call.name == "split" ? split(call.text(), used, max_splits) : rsplit(call.text(), used, max_splits));
}

Value do_splitlines(const Call& call) {
  const Bound b = call.bind({"keepends"}, 0);
  return call.list(split_lines(call.text(), b.flag(0, false)));
}

Value do_partition(const Call& call) {
  const Bound b = call.bind({"sep"}, 1);
  const std::string& sep = need_text(call, b.at(0));
  if (sep.empty()) fail("empty separator");
  const std::string_view text = call.text();
  const bool from_right = call.name == "rpartition";
  const size_t at = from_right ? text.rfind(sep) : text.find(sep);
  if (at == std::string_view::npos) {
    return from_right ? Value::tuple({call.empty(), call.empty(), call.result(text)})
                      : Value::tuple({call.result(text), call.empty(), call.empty()});
  }
  return Value::tuple({call.result(text.substr(0, at)), call.result(sep), call.result(text.substr(at + sep.size()))});
}

Value do_replace(const Call& call) {
  const Bound b = call.bind({"old", "new", "count"}, 2);
  const std::string& old = need_text(call, b.at(0));
  const std::string with = inserted(call, b.at(1));
  const int64_t count = b.integer(2, -1);
  call.runtime.charge_bytes(static_cast<int64_t>(replaced_size(call.text(), old, with, count)));
  return call.result(replace(call.text(), old, with, count));
}

// The part of the text that [start, end) names, as byte offsets; false if start lies beyond the end.
bool window(const Call& call, const Bound& b, size_t& begin, size_t& end) {
  const int64_t n = length(call.self);
  const auto index = [&](size_t i, int64_t absent) {
    if (!b.given(i) || b.at(i).is_none()) return absent;
    const int64_t v = b.integer(i, 0);
    return v < 0 ? (v < -n ? 0 : v + n) : v;
  };
  const int64_t first = index(1, 0);
  const int64_t last = std::min(index(2, n), n);
  if (first > n || last < first) return false;
  const bool ascii = call.self.as<String>().ascii();
  begin = ascii ? static_cast<size_t>(first) : byte_offset(call.text(), first);
  end = ascii ? static_cast<size_t>(last) : byte_offset(call.text(), last);
  return true;
}

Value do_find(const Call& call) {
  const Bound b = call.bind({"sub", "start", "end"}, 1);
  const std::string& sub = need_text(call, b.at(0));
  const bool must = call.name == "index" || call.name == "rindex";
  const bool from_right = call.name[0] == 'r';
  size_t begin, end;
  if (window(call, b, begin, end)) {
    const std::string_view part = std::string_view(call.text()).substr(begin, end - begin);
    const size_t at = from_right ? part.rfind(sub) : part.find(sub);
    if (at != std::string_view::npos) {
      return Value::integer(count_code_points(std::string_view(call.text()).substr(0, begin + at)));
    }
  }
  if (must) fail("substring not found");
  return Value::integer(-1);
}

Value do_count(const Call& call) {
  const Bound b = call.bind({"sub", "start", "end"}, 1);
  const std::string& sub = need_text(call, b.at(0));
  size_t begin, end;
  if (!window(call, b, begin, end)) return Value::integer(0);
  const std::string_view part = std::string_view(call.text()).substr(begin, end - begin);
  if (sub.empty()) return Value::integer(count_code_points(part) + 1);
  int64_t n = 0;
  for (size_t at = part.find(sub); at != std::string_view::npos; at = part.find(sub, at + sub.size())) ++n;
  return Value::integer(n);
}

Value do_starts_or_ends(const Call& call) {
  const Bound b = call.bind({"prefix", "start", "end"}, 1);
  const bool starts = call.name == "startswith";
  size_t begin, end;
  const bool inside = window(call, b, begin, end);
  const auto matches = [&](const Value& v) {
    if (v.is_undefined() || !v.is_string()) {
      fail(call.name + " first arg must be str or a tuple of str, not " + type_name(v));
    }
    if (!inside) return false;
    const std::string_view part = std::string_view(call.text()).substr(begin, end - begin);
    return starts ? part.substr(0, v.text().size()) == v.text()
                  : part.size() >= v.text().size() && part.substr(part.size() - v.text().size()) == v.text();
  };
  if (!b.at(0).is(Type::kTuple)) return Value::boolean(matches(b.at(0)));
  const auto& options = b.at(0).items();
  return Value::boolean(std::any_of(options.begin(), options.end(), matches));
}

Value do_join(const Call& call) {
  const Bound b = call.bind({"iterable"}, 1);
  std::string out;
  int64_t i = 0;
  for (const Value& item : call.runtime.collect(b.at(0))) {
    if (i++ > 0) out += call.text();
    if (call.markup()) {
      out += item.is_markup() ? item.text() : escape_html(to_str(item));
    } else if (item.is_string()) {
      out += item.text();
    } else {
      fail("sequence item " + std::to_string(i - 1) + ": expected str instance, " + type_name(item) + " found");
    }
    if (static_cast<int64_t>(out.size()) > call.runtime.limits().max_output_bytes)
      fail_limit("join() makes too long a text");
  }
  return call.result(std::move(out));
}

Value do_justify(const Call& call) {
  const Bound b = call.bind({"width", "fillchar"}, 1);
  const int64_t width = b.integer(0, 0);
  const std::string fill = b.given(1) ? inserted(call, b.at(1)) : " ";
  if (count_code_points(fill) != 1) fail("The fill character must be exactly one character long");
  const int64_t missing = width - length(call.self);
  if (missing <= 0) return call.result(call.text());
  call.runtime.charge_bytes(checked_mul(missing, 4));
  // CPython's str.center puts the odd one left only when the width is odd.
  const int64_t left = call.name == "ljust" ? 0 : call.name == "rjust" ? missing : missing / 2 + (missing & width & 1);
  const auto repeat = [&](int64_t n) {
    std::string s;
    for (int64_t i = 0; i < n; ++i) s += fill;
    return s;
  };
  return call.result(repeat(left) + call.text() + repeat(missing - left));
}

Value do_zfill(const Call& call) {
  const Bound b = call.bind({"width"}, 1);
  const int64_t missing = b.integer(0, 0) - length(call.self);
  if (missing <= 0) return call.result(call.text());
  call.runtime.charge_bytes(missing);
  std::string text = call.text();
  text.insert(!text.empty() && (text[0] == '+' || text[0] == '-') ? 1 : 0, static_cast<size_t>(missing), '0');
  return call.result(std::move(text));
}

Value do_remove_affix(const Call& call) {
  const Bound b = call.bind({"affix"}, 1);
  const std::string& affix = need_text(call, b.at(0));
  const std::string_view text = call.text();
  if (affix.size() > text.size() || affix.empty()) return call.result(text);
  if (call.name == "removeprefix") {
    return call.result(text.substr(0, affix.size()) == affix ? text.substr(affix.size()) : text);
  }
  const size_t keep = text.size() - affix.size();
  return call.result(text.substr(keep) == affix ? text.substr(0, keep) : text);
}

template <std::string (*map)(std::string_view)>
Value do_map_case(const Call& call) {
  call.none();
  return call.result(map(call.text()));
}

template <bool (*test)(std::string_view)>
Value do_case_test(const Call& call) {
  call.none();
  return Value::boolean(test(call.text()));
}

template <CharClass c>
Value do_class_test(const Call& call) {
  call.none();
  return Value::boolean(all_of_class(call.text(), c));
}

Value do_format(const Call& call) { return format_braces(call.runtime, call.self, call.args); }

// Methods of Python's strings that no published chat template was found to use.
Value do_left_out(const Call& call) { fail_left_out("the method str." + call.name + "()"); }

using Method = Value (*)(const Call&);
const std::unordered_map<std::string_view, Method>& methods() {
  static const std::unordered_map<std::string_view, Method> table = {
      {"strip", do_strip},
      {"lstrip", do_strip},
      {"rstrip", do_strip},
      {"split", do_split},
      {"rsplit", do_split},
      {"splitlines", do_splitlines},
      {"partition", do_partition},
      {"rpartition", do_partition},
      {"replace", do_replace},
      {"find", do_find},
      {"rfind", do_find},
      {"index", do_find},
      {"rindex", do_find},
      {"count", do_count},
      {"startswith", do_starts_or_ends},
      {"endswith", do_starts_or_ends},
      {"join", do_join},
      {"center", do_justify},
      {"ljust", do_justify},
      {"rjust", do_justify},
      {"zfill", do_zfill},
      {"removeprefix", do_remove_affix},
      {"removesuffix", do_remove_affix},
      {"expandtabs", do_left_out},
      {"format", do_format},
      {"format_map", do_left_out},
      {"upper", do_map_case<to_upper>},
      {"lower", do_map_case<to_lower>},
      {"title", do_map_case<to_title>},
      {"capitalize", do_map_case<capitalize>},
      {"swapcase", do_map_case<swap_case>},
      {"casefold", do_map_case<case_fold>},
      {"islower", do_case_test<is_lower>},
      {"isupper", do_case_test<is_upper>},
      {"istitle", do_case_test<is_title>},
      {"isalpha", do_class_test<CharClass::kAlpha>},
      {"isalnum", do_class_test<CharClass::kAlnum>},
      {"isdecimal", do_class_test<CharClass::kDecimal>},
      {"isdigit", do_class_test<CharClass::kDigit>},
      {"isnumeric", do_class_test<CharClass::kNumeric>},
      {"isspace", do_class_test<CharClass::kSpace>},
      {"isprintable", do_class_test<CharClass::kPrintable>},
      {"isascii", do_class_test<CharClass::kAscii>},
      {"isidentifier", do_class_test<CharClass::kIdentifier>},
      {"encode", do_left_out},
      {"maketrans", do_left_out},
      {"translate", do_left_out},
  };
  return table;
}

}  // namespace

bool is_string_method(std::string_view name) { return methods().count(name) != 0; }

Value call_string_method(Runtime& runtime, const Value& self, const std::string& name, const Args& args) {
  runtime.charge_steps(1 + static_cast<int64_t>(self.text().size()) / 64);
  return methods().at(name)(Call{runtime, self, name, args});
}

}  // namespace vlcache::jinja
