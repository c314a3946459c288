// printf-style formatting, str.format and format specifications.
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "base/escape_html.h"
#include "io/chat/jinja/number.h"
#include "io/chat/jinja/runtime.h"
#include "io/chat/jinja/text.h"

namespace vlcache::jinja {
namespace {

constexpr int64_t kMaxWidth = 1 << 20;  // fields wider than this are a mistake or an attack

struct Spec {
  std::string fill = " ";
  char align = 0;  // < > ^ =
  char sign = '-';
  bool alternate = false;
  bool zero = false;
  int64_t width = 0;
  char grouping = 0;  // , _
  int64_t precision = -1;
  char type = 0;
};

int64_t read_number(std::string_view text, size_t& pos) {
  int64_t value = 0;
  while (pos < text.size() && text[pos] >= '0' && text[pos] <= '9') {
    value = value * 10 + (text[pos++] - '0');
    if (value > kMaxWidth) fail_limit("a format field wider than " + std::to_string(kMaxWidth));
  }
  return value;
}

bool is_align(char c) { return c == '<' || c == '>' || c == '^' || c == '='; }

Spec parse_spec(std::string_view text) {
  Spec spec;
  size_t pos = 0;
  if (!text.empty()) {
    size_t after = 0;
    next_code_point(text, after);
    if (after < text.size() && is_align(text[after])) {
      spec.fill = std::string(text.substr(0, after));
      spec.align = text[after];
      pos = after + 1;
    } else if (is_align(text[0])) {
      spec.align = text[0];
      pos = 1;
    }
  }
  const auto accept = [&](std::string_view set) -> char {
    return pos < text.size() && set.find(text[pos]) != std::string_view::npos ? text[pos++] : 0;
  };
  if (const char c = accept("+- ")) spec.sign = c;
  spec.alternate = accept("#") != 0;
  if (accept("0") != 0) {
    spec.zero = true;
    if (spec.align == 0) {
      spec.fill = "0";
      spec.align = '=';
    }
  }
  spec.width = read_number(text, pos);
  spec.grouping = accept(",_");
  if (accept(".") != 0) {
    const size_t begin = pos;
    spec.precision = read_number(text, pos);
    if (pos == begin) fail("Format specifier missing precision");
  }
  if (pos < text.size()) spec.type = text[pos++];
  if (pos != text.size()) fail("Invalid format specifier '" + std::string(text) + "'");
  return spec;
}

std::string pad(const std::string& sign, const std::string& body, const Spec& spec, char default_align) {
  const int64_t missing = spec.width - count_code_points(sign) - count_code_points(body);
  if (missing <= 0) return sign + body;
  const char align = spec.align != 0 ? spec.align : default_align;
  const auto fill = [&](int64_t n) {
    std::string out;
    for (int64_t i = 0; i < n; ++i) out += spec.fill;
    return out;
  };
  switch (align) {
    case '<':
      return sign + body + fill(missing);
    case '^':
      return fill(missing / 2) + sign + body + fill(missing - missing / 2);
    case '=':
      return sign + fill(missing) + body;
    default:
      return fill(missing) + sign + body;
  }
}

std::string group_digits(const std::string& digits, char separator, size_t every) {
  std::string out;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % every == 0) out += separator;
    out += digits[i];
  }
  return out;
}

std::string sign_of(bool negative, char style) {
  if (negative) return "-";
  return style == '+' ? "+" : style == ' ' ? " " : "";
}

std::string digits_in_base(uint64_t magnitude, unsigned base, bool upper) {
  std::string out;
  do {
    out.insert(out.begin(), (upper ? "0123456789ABCDEF" : "0123456789abcdef")[magnitude % base]);
    magnitude /= base;
  } while (magnitude != 0);
  return out;
}

uint64_t magnitude_of(int64_t i) { return i < 0 ? 0 - static_cast<uint64_t>(i) : static_cast<uint64_t>(i); }

std::string format_integer(int64_t i, const Spec& spec) {
  if (spec.precision >= 0) fail("Precision not allowed in integer format specifier");
  if (spec.type == 'c') {
    if (i < 0 || i > 0x10FFFF || (i >= 0xD800 && i < 0xE000)) fail("%c arg not in range(0x110000)");
    return pad("", to_utf8(static_cast<char32_t>(i)), spec, '<');
  }
  const bool hex = spec.type == 'x' || spec.type == 'X';
  const unsigned base = hex ? 16 : spec.type == 'o' ? 8 : spec.type == 'b' ? 2 : 10;
  std::string digits = digits_in_base(magnitude_of(i), base, spec.type == 'X');
  if (spec.grouping != 0) digits = group_digits(digits, spec.grouping, base == 10 ? 3 : 4);
  std::string sign = sign_of(i < 0, spec.sign);
  if (spec.alternate && base != 10) sign += std::string("0") + (base == 8 ? 'o' : base == 2 ? 'b' : spec.type);
  return pad(sign, digits, spec, '>');
}

// `type` is one of e E f F g G; the exact digits printf gives are the ones Python gives.
std::string print_float(double magnitude, char type, int64_t precision, bool alternate) {
  std::array<char, 8> format;
  std::snprintf(format.data(), format.size(), alternate ? "%%#.*%c" : "%%.*%c", type);
  const int digits = static_cast<int>(std::min<int64_t>(precision, 5000));
  std::string out(static_cast<size_t>(digits) + 400, '\0');
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
  const int n = std::snprintf(out.data(), out.size(), format.data(), digits, magnitude);
#pragma GCC diagnostic pop
  out.resize(static_cast<size_t>(n));
  return out;
}

std::string format_float(double d, const Spec& spec) {
  const bool negative = std::signbit(d) && !std::isnan(d);
  const double magnitude = std::abs(d);
  std::string body;
  if (!std::isfinite(d)) {
    body = std::isnan(d) ? "nan" : "inf";
    if (spec.type == 'F' || spec.type == 'E' || spec.type == 'G') body = to_upper(body);
  } else if (spec.type == 0) {
    body = float_repr(magnitude);
    if (spec.precision >= 0) {
      body = print_float(magnitude, 'g', std::max<int64_t>(spec.precision, 1), spec.alternate);
      if (body.find_first_of(".e") == std::string::npos) body += ".0";
    }
  } else if (spec.type == '%') {
    body = print_float(magnitude * 100, 'f', spec.precision < 0 ? 6 : spec.precision, spec.alternate) + "%";
  } else {
    const char type = spec.type == 'n' ? 'g' : spec.type;
    int64_t precision = spec.precision < 0 ? 6 : spec.precision;
    if ((type == 'g' || type == 'G') && precision == 0) precision = 1;
    body = print_float(magnitude, type, precision, spec.alternate);
  }
  if (spec.grouping != 0) {
    const size_t whole = body.find_first_not_of("0123456789");
    const size_t n = whole == std::string::npos ? body.size() : whole;
    body = group_digits(body.substr(0, n), spec.grouping, 3) + body.substr(n);
  }
  return pad(sign_of(negative, spec.sign), body, spec, '>');
}

std::string format_text(const std::string& text, const Spec& spec) {
  if ((spec.type != 0 && spec.type != 's') || spec.grouping != 0) {
    fail(std::string("Unknown format code '") + (spec.type != 0 ? spec.type : spec.grouping) +
         "' for object of type 'str'");
  }
  if (spec.align == '=' && !spec.zero) fail("'=' alignment not allowed in string format specifier");
  Spec used = spec;
  if (used.align == '=') used.align = '<';
  return pad("", spec.precision < 0 ? text : text.substr(0, byte_offset(text, spec.precision)), used, '<');
}

}  // namespace

std::string format_value(const Value& value, std::string_view spec_text) {
  if (spec_text.empty()) return to_str(value);
  const Spec spec = parse_spec(spec_text);
  if (value.is_string()) return format_text(value.text(), spec);
  const bool float_type = spec.type != 0 && std::string_view("eEfFgGn%").find(spec.type) != std::string_view::npos;
  const bool int_type = spec.type == 0 || std::string_view("bcdoxXn").find(spec.type) != std::string_view::npos;
  if (value.is(Type::kBool) && spec.type == 0) return format_text(to_str(value), spec);
  if (value.is_integral() && int_type) return format_integer(value.as_int(), spec);
  if (value.is_number() && (float_type || (value.is(Type::kFloat) && spec.type == 0)))
    return format_float(value.as_double(), spec);
  if (value.is_number()) {
    fail(std::string("Unknown format code '") + spec.type + "' for object of type '" + type_name(value) + "'");
  }
  fail("unsupported format string passed to " + type_name(value) + ".__format__");
}

namespace {

// One printf conversion: %(key)#0- +width.precision type
struct Conversion {
  bool left = false;
  Spec spec;
};

std::string convert(const Conversion& c, const Value& v, bool markup) {
  Spec spec = c.spec;
  if (c.left) spec.align = '<';
  const auto text = [&](const std::string& s) {
    const std::string shown = markup && !v.is_markup() ? escape_html(s) : s;
    Spec used = spec;
    used.fill = " ";
    return pad("", spec.precision < 0 ? shown : shown.substr(0, byte_offset(shown, spec.precision)), used, '>');
  };
  const auto need_number = [&] {
    if (v.is_undefined()) fail_undefined(v);
    if (!v.is_number()) fail(std::string("%") + spec.type + " format: a real number is required, not " + type_name(v));
  };
  if (spec.zero && !c.left) {
    spec.fill = "0";
    spec.align = '=';
  }
  switch (spec.type) {
    case 's':
      return text(to_str(v));
    case 'r':
    case 'a':
      return text(to_repr(v));
    case 'c':
      if (v.is_string() && length(v) == 1) return text(v.text());
      need_number();
      return format_integer(v.as_int(), spec);
    case 'd':
    case 'i':
    case 'u':
    case 'x':
    case 'X':
    case 'o': {
      need_number();
      if (v.is(Type::kFloat) && spec.type != 'd' && spec.type != 'i' && spec.type != 'u') {
        fail(std::string("%") + spec.type + " format: an integer is required, not float");
      }
      const int64_t i = v.is(Type::kFloat) ? float_to_int(v.as_double()) : v.as_int();
      const int64_t min_digits = spec.precision;
      spec.precision = -1;
      if (spec.type == 'i' || spec.type == 'u') spec.type = 'd';
      if (min_digits < 0) return format_integer(i, spec);
      const bool hex = spec.type == 'x' || spec.type == 'X';
      std::string digits = digits_in_base(magnitude_of(i), hex ? 16 : spec.type == 'o' ? 8 : 10, spec.type == 'X');
      if (static_cast<int64_t>(digits.size()) < min_digits)
        digits.insert(0, static_cast<size_t>(min_digits) - digits.size(), '0');
      return pad(sign_of(i < 0, spec.sign), digits, spec, '>');
    }
    case 'e':
    case 'E':
    case 'f':
    case 'F':
    case 'g':
    case 'G':
      need_number();
      return format_float(v.as_double(), spec);
    default:
      fail(std::string("unsupported format character '") + spec.type + "'");
  }
}

class PercentFormatter {
 public:
  PercentFormatter(Runtime& runtime, const Value& format, const Value& args)
      : runtime_(runtime), format_(format.text()), markup_(format.is_markup()), args_(args) {}

  Value run() {
    while (pos_ < format_.size()) {
      const char c = format_[pos_++];
      if (c != '%') {
        out_ += c;
        continue;
      }
      conversion();
      runtime_.charge_steps(1 + static_cast<int64_t>(out_.size()) / 4096);
    }
    const bool all_used = !args_.is(Type::kTuple) ? used_ > 0 || args_.is_dict() || args_.is(Type::kList)
                                                  : used_ >= args_.items().size() || by_name_;
    if (!all_used) fail("not all arguments converted during string formatting");
    return runtime_.new_string(std::move(out_), markup_);
  }

 private:
  char peek() const {
    if (pos_ >= format_.size()) fail("incomplete format");
    return format_[pos_];
  }

  Value take() {
    if (args_.is(Type::kTuple)) {
      if (used_ >= args_.items().size()) fail("not enough arguments for format string");
      return args_.items()[used_++];
    }
    if (used_++ > 0) fail("not enough arguments for format string");
    return args_;
  }

  int64_t star_or_number() {
    if (peek() != '*') return read_number(format_, pos_);
    ++pos_;
    const Value v = take();
    if (!v.is_integral()) fail("* wants int");
    if (v.as_int() > kMaxWidth || v.as_int() < -kMaxWidth)
      fail_limit("a format field wider than " + std::to_string(kMaxWidth));
    return v.as_int();
  }

  void conversion() {
    Conversion c;
    Value named;
    if (peek() == '(') {
      const size_t end = format_.find(')', pos_);
      if (end == std::string::npos) fail("incomplete format key");
      if (!args_.is_dict()) fail("format requires a mapping");
      const std::string key = format_.substr(pos_ + 1, end - pos_ - 1);
      const Value* found = args_.as<Dict>().find(key);
      if (found == nullptr) fail("KeyError: '" + key + "'");
      named = *found;
      by_name_ = true;
      pos_ = end + 1;
    }
    for (; std::string_view("-+ #0").find(peek()) != std::string_view::npos; ++pos_) {
      const char f = format_[pos_];
      if (f == '-') c.left = true;
      if (f == '+' || (f == ' ' && c.spec.sign != '+')) c.spec.sign = f;
      if (f == '#') c.spec.alternate = true;
      if (f == '0') c.spec.zero = true;
    }
    c.spec.width = star_or_number();
    if (c.spec.width < 0) {
      c.left = true;
      c.spec.width = -c.spec.width;
    }
    if (peek() == '.') {
      ++pos_;
      c.spec.precision = std::max<int64_t>(0, star_or_number());
    }
    while (peek() == 'l' || peek() == 'h' || peek() == 'L') ++pos_;
    c.spec.type = peek();
    ++pos_;
    if (c.spec.type == '%') {
      out_ += '%';
      return;
    }
    out_ += convert(c, named.is_missing() ? take() : named, markup_);
    runtime_.charge_bytes(c.spec.width);
  }

  Runtime& runtime_;
  const std::string& format_;
  bool markup_;
  const Value& args_;
  std::string out_;
  size_t pos_ = 0;
  size_t used_ = 0;
  bool by_name_ = false;
};

class BraceFormatter {
 public:
  BraceFormatter(Runtime& runtime, const Args& args, bool markup) : runtime_(runtime), args_(args), markup_(markup) {}

  std::string expand(std::string_view format, int depth) {
    if (depth > 2) fail("Max string recursion exceeded");
    std::string out;
    for (size_t pos = 0; pos < format.size();) {
      const char c = format[pos++];
      if (c != '{' && c != '}') {
        out += c;
      } else if (pos < format.size() && format[pos] == c) {
        out += c;
        ++pos;
      } else if (c == '}') {
        fail("Single '}' encountered in format string");
      } else {
        out += field(format, pos, depth);
        runtime_.charge_bytes(static_cast<int64_t>(out.size()) / 64);
      }
      if (static_cast<int64_t>(out.size()) > runtime_.limits().max_output_bytes)
        fail_limit("str.format() makes too long a text");
    }
    return out;
  }

 private:
  std::string field(std::string_view format, size_t& pos, int depth) {
    size_t end = pos;
    int nesting = 1;
    for (; end < format.size(); ++end) {
      if (format[end] == '{') ++nesting;
      if (format[end] == '}' && --nesting == 0) break;
    }
    if (end >= format.size()) fail("expected '}' before end of string");
    const std::string_view inside = format.substr(pos, end - pos);
    pos = end + 1;
    size_t name_end = inside.find_first_of("!:");
    // A bracketed index may hold these characters.
    if (const size_t open = inside.find('['); open != std::string_view::npos && open < name_end) {
      const size_t close = inside.find(']', open);
      if (close != std::string_view::npos) name_end = inside.find_first_of("!:", close);
    }
    name_end = std::min(name_end, inside.size());
    Value value = lookup(inside.substr(0, name_end));
    std::string_view rest = inside.substr(name_end);
    if (!rest.empty() && rest[0] == '!') {
      if (rest.size() < 2) fail("end of string while looking for conversion specifier");
      if (rest[1] == 's') {
        value = Value::string(to_str(value));
      } else if (rest[1] == 'r' || rest[1] == 'a') {
        value = Value::string(to_repr(value));
      } else {
        fail(std::string("Unknown conversion specifier ") + rest[1]);
      }
      rest = rest.substr(2);
      if (!rest.empty() && rest[0] != ':') fail("expected ':' after conversion specifier");
    }
    const std::string spec = rest.empty() ? "" : expand(rest.substr(1), depth + 1);
    const std::string text = format_value(value, spec);
    return markup_ && !value.is_markup() ? escape_html(text) : text;
  }

  Value lookup(std::string_view name) {
    const size_t end = std::min(name.find_first_of(".["), name.size());
    Value value = first(name.substr(0, end));
    for (size_t pos = end; pos < name.size();) {
      if (name[pos] == '.') {
        const size_t stop = std::min(name.find_first_of(".[", pos + 1), name.size());
        if (stop == pos + 1) fail("Empty attribute in format string");
        value = runtime_.get_attribute(value, std::string(name.substr(pos + 1, stop - pos - 1)));
        pos = stop;
      } else if (name[pos] == '[') {
        const size_t close = name.find(']', pos);
        if (close == std::string_view::npos) fail("Missing ']' in format string");
        const std::string_view key = name.substr(pos + 1, close - pos - 1);
        if (key.empty()) fail("Empty attribute in format string");
        const bool number = all_of_class(key, CharClass::kDecimal) && key.size() < 18;
        value = runtime_.get_item(
            value, number ? Value::integer(std::stoll(std::string(key))) : Value::string(std::string(key)));
        pos = close + 1;
      } else {
        fail("Only '.' or '[' may follow ']' in format field specifier");
      }
    }
    return value;
  }

  Value first(std::string_view name) {
    size_t index;
    if (name.empty()) {
      if (manual_) fail("cannot switch from manual field specification to automatic field numbering");
      automatic_ = true;
      index = next_++;
    } else if (name.find_first_not_of("0123456789") == std::string_view::npos && name.size() < 10) {
      if (automatic_) fail("cannot switch from manual field specification to automatic field numbering");
      manual_ = true;
      index = static_cast<size_t>(std::stoll(std::string(name)));
    } else {
      for (const auto& [key, value] : args_.named) {
        if (key == name) return value;
      }
      fail("KeyError: '" + std::string(name) + "'");
    }
    if (index >= args_.positional.size())
      fail("Replacement index " + std::to_string(index) + " out of range for positional args tuple");
    return args_.positional[index];
  }

  Runtime& runtime_;
  const Args& args_;
  bool markup_;
  bool automatic_ = false;
  bool manual_ = false;
  size_t next_ = 0;
};

}  // namespace

Value format_percent(Runtime& runtime, const Value& format, const Value& args) {
  return PercentFormatter(runtime, format, args).run();
}

Value format_braces(Runtime& runtime, const Value& format, const Args& args) {
  BraceFormatter formatter(runtime, args, format.is_markup());
  return runtime.new_string(formatter.expand(format.text(), 0), format.is_markup());
}

}  // namespace vlcache::jinja
