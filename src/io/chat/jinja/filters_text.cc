// Filters that return text and numbers. Source of behaviour: jinja2 3.1 filters.py, with tojson as transformers
// replaces it.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "base/escape_html.h"
#include "io/chat/jinja/filters.h"
#include "io/chat/jinja/number.h"
#include "io/chat/jinja/text.h"

namespace vlcache::jinja {

Value soft_string(Runtime& runtime, const Value& value) {
  return value.is_string() ? value : runtime.new_string(to_str(value));
}

namespace {

Value call_text(Runtime& rt, const Value& v, const char* method, const Args& args) {
  return call_string_method(rt, soft_string(rt, v), method, args);
}

Value do_upper(Runtime& rt, const Value& v, const Args& args) {
  Bound("upper", args, {});
  return call_text(rt, v, "upper", {});
}

Value do_lower(Runtime& rt, const Value& v, const Args& args) {
  Bound("lower", args, {});
  return call_text(rt, v, "lower", {});
}

Value do_capitalize(Runtime& rt, const Value& v, const Args& args) {
  Bound("capitalize", args, {});
  return call_text(rt, v, "capitalize", {});
}

// Words begin after white space or one of -({[<.
Value do_title(Runtime& rt, const Value& v, const Args& args) {
  Bound("title", args, {});
  const std::string text = to_str(v);
  std::string out;
  std::string word;
  const auto flush = [&] {
    if (word.empty()) return;
    const size_t first = byte_offset(word, 1);
    out += to_upper(std::string_view(word).substr(0, first)) + to_lower(std::string_view(word).substr(first));
    word.clear();
  };
  for (size_t pos = 0; pos < text.size();) {
    const size_t begin = pos;
    const char32_t c = next_code_point(text, pos);
    const bool separator = is_space(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
    if (separator) flush();
    (separator ? out : word) += text.substr(begin, pos - begin);
  }
  flush();
  return rt.new_string(std::move(out));
}

Value do_trim(Runtime& rt, const Value& v, const Args& args) {
  const Bound b("trim", args, {"chars"});
  return call_text(rt, v, "strip", Args{{b.get(0, Value::none())}, {}});
}

Value do_center(Runtime& rt, const Value& v, const Args& args) {
  const Bound b("center", args, {"width"});
  return call_text(rt, v, "center", Args{{Value::integer(b.integer(0, 80))}, {}});
}

Value do_replace(Runtime& rt, const Value& v, const Args& args) {
  const Bound b("replace", args, {"old", "new", "count"}, 2);
  const Value count = b.get(2, Value::none());
  if (!count.is_none() && !count.is_integral()) fail("replace(): count must be an integer");
  const Value plain = Value::string(to_str(v));
  const Args inner{{Value::string(to_str(b.at(0))), Value::string(to_str(b.at(1))),
                    Value::integer(count.is_none() ? -1 : count.as_int())},
                   {}};
  return call_string_method(rt, plain, "replace", inner);
}

Value do_string(Runtime& rt, const Value& v, const Args& args) {
  Bound("string", args, {});
  return soft_string(rt, v);
}

Value do_safe(Runtime& rt, const Value& v, const Args& args) {
  Bound("safe", args, {});
  return v.is_markup() ? v : rt.new_string(to_str(v), true);
}

Value do_escape(Runtime& rt, const Value& v, const Args& args) {
  Bound("escape", args, {});
  return v.is_markup() ? v : rt.new_string(escape_html(to_str(v)), true);
}

Value do_force_escape(Runtime& rt, const Value& v, const Args& args) {
  Bound("forceescape", args, {});
  return rt.new_string(escape_html(to_str(v)), true);
}

Value do_indent(Runtime& rt, const Value& v, const Args& args) {
  const Bound b("indent", args, {"width", "first", "blank"});
  if (v.is_undefined()) fail_undefined(v);
  if (!v.is_string()) fail("unsupported operand type(s) for +=: '" + type_name(v) + "' and 'str'");
  const Value width = b.get(0, Value::integer(4));
  const int64_t n_spaces = width.is_string() ? 0 : Bound("indent", Args{{width}, {}}, {"width"}).integer(0, 4);
  if (n_spaces > 100'000) fail_limit("indent() by more than 100000");
  const std::string pad =
      width.is_string() ? width.text() : std::string(static_cast<size_t>(std::max<int64_t>(n_spaces, 0)), ' ');
  const std::string with_newline = v.text() + "\n";
  const auto lines = split_lines(with_newline, false);
  rt.charge_bytes(static_cast<int64_t>(with_newline.size() + lines.size() * pad.size()));
  std::string out = b.flag(1, false) ? pad : "";
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) {
      out += '\n';
      if (b.flag(2, false) || !lines[i].empty()) out += pad;
    }
    out += lines[i];
  }
  return rt.new_string(std::move(out), v.is_markup());
}

Value do_truncate(Runtime& rt, const Value& v, const Args& args) {
  const Bound b("truncate", args, {"length", "killwords", "end", "leeway"});
  const Value end = b.get(2, Value::string("..."));
  if (!end.is_string()) fail("truncate(): end must be a string");
  const Value leeway_value = b.get(3, Value::none());
  const int64_t leeway = leeway_value.is_none() ? 5 : b.integer(3, 5);
  const int64_t size = b.integer(0, 255);
  if (size < length(end)) fail("expected length >= " + std::to_string(length(end)) + ", got " + std::to_string(size));
  if (leeway < 0) fail("expected leeway >= 0, got " + std::to_string(leeway));
  if (v.is_undefined()) return v;
  if (length(v) <= checked_add(size, leeway)) return v;
  if (!v.is_string()) fail("truncate(): expected a string, got " + type_name(v));
  Value kept = slice(v, {Value::none(), Value::integer(size - length(end)), Value::none()});
  if (!b.flag(1, false)) {
    const Value parts = call_string_method(rt, kept, "rsplit", Args{{Value::string(" "), Value::integer(1)}, {}});
    kept = parts.items()[0];
  }
  return concat_strings(rt, kept, end);
}

Value do_word_count(Runtime& rt, const Value& v, const Args& args) {
  Bound("wordcount", args, {});
  const std::string text = to_str(v);
  rt.charge_steps(static_cast<int64_t>(text.size()) / 64);
  int64_t n = 0;
  bool inside = false;
  for (size_t pos = 0; pos < text.size();) {
    const size_t begin = pos;
    const char32_t c = next_code_point(text, pos);
    const bool word = c == '_' || all_of_class(std::string_view(text).substr(begin, pos - begin), CharClass::kAlnum);
    n += word && !inside;
    inside = word;
  }
  return Value::integer(n);
}

Value do_strip_tags(Runtime& rt, const Value& v, const Args& args) {
  Bound("striptags", args, {});
  const std::string text = to_str(v);
  if (text.find('&') != std::string::npos) fail_unsupported("the filter 'striptags' on a text with HTML entities");
  std::string kept;
  size_t pos = 0;
  for (size_t start; (start = text.find('<', pos)) != std::string::npos;) {
    const bool comment = text.compare(start, 4, "<!--") == 0;
    const size_t end = comment ? text.find("-->", start + 4) : text.find('>', start);
    if (end == std::string::npos) break;
    kept += text.substr(pos, start - pos);
    pos = end + (comment ? 3 : 1);
  }
  kept += text.substr(pos);
  std::string out;
  for (const std::string_view word : split(kept, nullptr, -1)) {
    if (!out.empty()) out += ' ';
    out += word;
  }
  return rt.new_string(std::move(out));
}

std::string url_quote(const std::string& text, bool query) {
  std::string out;
  for (const char c : text) {
    const auto u = static_cast<unsigned char>(c);
    if (std::isalnum(u) != 0 || std::string_view("_.-~").find(c) != std::string_view::npos || (c == '/' && !query)) {
      out += c;
    } else if (c == ' ' && query) {
      out += '+';
    } else {
      std::array<char, 4> hex;
      std::snprintf(hex.data(), hex.size(), "%%%02X", u);
      out += hex.data();
    }
  }
  return out;
}

Value do_urlencode(Runtime& rt, const Value& v, const Args& args) {
  Bound("urlencode", args, {});
  if (v.is_string() || !is_iterable(v)) return rt.new_string(url_quote(to_str(v), false));
  std::string out;
  const Value pairs = v.is_dict() ? rt.call_filter("items", v, {}) : v;
  for (const Value& pair : rt.collect(pairs)) {
    const auto parts = rt.collect(pair);
    if (parts.size() != 2) fail("not enough values to unpack (expected 2, got " + std::to_string(parts.size()) + ")");
    if (!out.empty()) out += '&';
    out += url_quote(to_str(parts[0]), true) + "=" + url_quote(to_str(parts[1]), true);
  }
  return rt.new_string(std::move(out));
}

Value do_int(Runtime&, const Value& v, const Args& args) {
  const Bound b("int", args, {"default", "base"});
  const Value fallback = b.get(0, Value::integer(0));
  if (v.is_undefined()) fail_undefined(v);
  if (v.is_string()) {
    if (const auto i = parse_int(v.text(), b.integer(1, 10))) return Value::integer(*i);
    const auto d = parse_float(v.text());
    return d && std::isfinite(*d) ? Value::integer(float_to_int(*d)) : fallback;
  }
  if (v.is_integral()) return Value::integer(v.as_int());
  if (!v.is(Type::kFloat) || std::isnan(v.as_double())) return fallback;
  return Value::integer(float_to_int(v.as_double()));
}

Value do_float(Runtime&, const Value& v, const Args& args) {
  const Bound b("float", args, {"default"});
  const Value fallback = b.get(0, Value::real(0));
  if (v.is_undefined()) fail_undefined(v);
  if (v.is_number()) return Value::real(v.as_double());
  if (!v.is_string()) return fallback;
  const auto d = parse_float(v.text());
  return d ? Value::real(*d) : fallback;
}

Value do_abs(Runtime&, const Value& v, const Args& args) {
  Bound("abs", args, {});
  if (v.is(Type::kFloat)) return Value::real(std::abs(v.as_double()));
  if (!v.is_integral()) fail("bad operand type for abs(): '" + type_name(v) + "'");
  return Value::integer(v.as_int() < 0 ? checked_sub(0, v.as_int()) : v.as_int());
}

Value do_round(Runtime&, const Value& v, const Args& args) {
  const Bound b("round", args, {"precision", "method"});
  const Value method = b.get(1, Value::string("common"));
  const int64_t precision = b.integer(0, 0);
  const std::string name = to_str(method);
  if (name != "common" && name != "ceil" && name != "floor") fail("method must be common, ceil or floor");
  if (v.is_undefined()) fail_undefined(v);
  if (!v.is_number()) fail("type " + type_name(v) + " doesn't define __round__ method");
  if (name == "common") {
    if (v.is(Type::kFloat)) return Value::real(round_to(v.as_double(), precision));
    if (precision >= 0) return Value::integer(v.as_int());
    return Value::integer(float_to_int(round_to(v.as_double(), precision)));
  }
  if (precision > 300 || precision < -300) fail_limit("round() to more than 300 digits");
  const double scale = std::pow(10.0, static_cast<double>(precision));
  const double scaled = v.as_double() * scale;
  return Value::real((name == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale);
}

Value do_file_size(Runtime& rt, const Value& v, const Args& args) {
  const Bound b("filesizeformat", args, {"binary"});
  const std::optional<double> parsed = v.is_string() ? parse_float(v.text()) : std::nullopt;
  if (!parsed && !v.is_number()) fail("filesizeformat: could not convert to float: " + to_repr(v));
  const double size = v.is_number() ? v.as_double() : parsed.value_or(0);
  const bool binary = b.flag(0, false);
  const double base = binary ? 1024 : 1000;
  if (size == 1) return rt.new_string("1 Byte");
  if (size < base) return rt.new_string(std::to_string(float_to_int(size)) + " Bytes");
  const std::string prefixes = "kMGTPEZY";
  double unit = base;
  for (size_t i = 0; i < prefixes.size(); ++i) {
    unit *= base;
    if (size >= unit && i + 1 < prefixes.size()) continue;
    std::string suffix(1, binary && i == 0 ? 'K' : prefixes[i]);
    suffix += binary ? "iB" : "B";
    return rt.new_string(format_value(Value::real(base * size / unit), ".1f") + " " + suffix);
  }
  return {};
}

Value do_format(Runtime& rt, const Value& v, const Args& args) {
  if (!args.positional.empty() && !args.named.empty())
    fail("can't handle positional and keyword arguments at the same time");
  const Value format = soft_string(rt, v);
  if (args.named.empty()) return format_percent(rt, format, Value::tuple(args.positional));
  std::vector<std::pair<Value, Value>> entries;
  for (const auto& [name, value] : args.named) entries.emplace_back(Value::string(name), value);
  return format_percent(rt, format, make_dict(std::move(entries)));
}

Value do_tojson(Runtime& rt, const Value& v, const Args& args) {
  const Bound b("tojson", args, {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ensure_ascii = b.flag(0, false);
  style.sort_keys = b.flag(3, false);
  const Value indent = b.get(1, Value::none());
  if (!indent.is_none()) {
    style.pretty = true;
    style.item_separator = ",";
    if (indent.is_string()) {
      style.indent = indent.text();
    } else {
      const int64_t n = b.integer(1, 0);
      if (n > 1000) fail_limit("tojson with an indent of more than 1000");
      style.indent = std::string(static_cast<size_t>(std::max<int64_t>(n, 0)), ' ');
    }
  }
  const Value separators = b.get(2, Value::none());
  if (!separators.is_none()) {
    const auto parts = rt.collect(separators);
    if (parts.size() != 2 || !parts[0].is_string() || !parts[1].is_string())
      fail("tojson: separators must be two strings");
    style.item_separator = parts[0].text();
    style.key_separator = parts[1].text();
  }
  return rt.new_string(dump_json(rt, v, style));
}

// Filters of jinja2 that no published chat template was found to use.
Value do_pprint(Runtime&, const Value&, const Args&) { fail_left_out("the filter 'pprint'"); }
Value do_random(Runtime&, const Value&, const Args&) { fail_left_out("the filter 'random'"); }
Value do_urlize(Runtime&, const Value&, const Args&) { fail_left_out("the filter 'urlize'"); }
Value do_word_wrap(Runtime&, const Value&, const Args&) { fail_left_out("the filter 'wordwrap'"); }
Value do_xml_attributes(Runtime&, const Value&, const Args&) { fail_left_out("the filter 'xmlattr'"); }

}  // namespace

std::initializer_list<FilterEntry> text_filters() {
  static const std::initializer_list<FilterEntry> table = {
      {"abs", do_abs},
      {"capitalize", do_capitalize},
      {"center", do_center},
      {"e", do_escape},
      {"escape", do_escape},
      {"filesizeformat", do_file_size},
      {"float", do_float},
      {"forceescape", do_force_escape},
      {"format", do_format},
      {"indent", do_indent},
      {"int", do_int},
      {"lower", do_lower},
      {"pprint", do_pprint},
      {"random", do_random},
      {"replace", do_replace},
      {"round", do_round},
      {"safe", do_safe},
      {"string", do_string},
      {"striptags", do_strip_tags},
      {"title", do_title},
      {"tojson", do_tojson},
      {"trim", do_trim},
      {"truncate", do_truncate},
      {"upper", do_upper},
      {"urlencode", do_urlencode},
      {"urlize", do_urlize},
      {"wordcount", do_word_count},
      {"wordwrap", do_word_wrap},
      {"xmlattr", do_xml_attributes},
  };
  return table;
}

}  // namespace vlcache::jinja
