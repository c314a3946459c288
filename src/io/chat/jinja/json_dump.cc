// json.dumps: the tojson filter of chat templates.
#include <algorithm>
#include <cmath>

#include "io/chat/jinja/number.h"
#include "io/chat/jinja/runtime.h"
#include "io/chat/jinja/text.h"

namespace vlcache::jinja {
namespace {

class JsonWriter {
 public:
  JsonWriter(Runtime& runtime, const JsonStyle& style) : runtime_(runtime), style_(style) {}

  void write(const Value& v, int level) {
    runtime_.charge_steps(1);
    switch (v.type()) {
      case Type::kNone:
        out_ += "null";
        break;
      case Type::kBool:
        out_ += v.as_int() != 0 ? "true" : "false";
        break;
      case Type::kInt:
        out_ += std::to_string(v.as_int());
        break;
      case Type::kFloat:
        out_ += number(v.as_double());
        break;
      case Type::kString:
        v.is_digits() ? void(out_ += v.text()) : quote(v.text());
        break;
      case Type::kList:
      case Type::kTuple:
        array(v.items(), level);
        break;
      case Type::kDict:
        object(v.as<Dict>(), level);
        break;
      default:
        fail("Object of type " + type_name(v) + " is not JSON serializable");
    }
    if (static_cast<int64_t>(out_.size()) > runtime_.limits().max_output_bytes)
      fail_limit("tojson makes too long a text");
  }

  std::string take() { return std::move(out_); }

 private:
  static std::string number(double d) {
    if (std::isnan(d)) return "NaN";
    if (std::isinf(d)) return d > 0 ? "Infinity" : "-Infinity";
    return float_repr(d);
  }

  void new_line(int level) {
    if (!style_.pretty) return;
    out_ += '\n';
    for (int i = 0; i < level; ++i) out_ += style_.indent;
  }

  void array(const std::vector<Value>& items, int level) {
    if (items.empty()) {
      out_ += "[]";
      return;
    }
    out_ += '[';
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out_ += style_.item_separator;
      new_line(level + 1);
      write(items[i], level + 1);
    }
    new_line(level);
    out_ += ']';
  }

  void object(const Dict& dict, int level) {
    if (dict.entries.empty()) {
      out_ += "{}";
      return;
    }
    auto entries = dict.entries;
    if (style_.sort_keys) {
      std::stable_sort(entries.begin(), entries.end(),
                       [](const auto& a, const auto& b) { return less(a.first, b.first); });
    }
    out_ += '{';
    bool first = true;
    for (const auto& [key, value] : entries) {
      if (!first) out_ += style_.item_separator;
      first = false;
      new_line(level + 1);
      write_key(key);
      out_ += style_.key_separator;
      write(value, level + 1);
    }
    new_line(level);
    out_ += '}';
  }

  void write_key(const Value& key) {
    switch (key.type()) {
      case Type::kString:
        quote(key.text());
        break;
      case Type::kFloat:
        quote(number(key.as_double()));
        break;
      case Type::kBool:
        quote(key.as_int() != 0 ? "true" : "false");
        break;
      case Type::kNone:
        quote("null");
        break;
      case Type::kInt:
        quote(std::to_string(key.as_int()));
        break;
      default:
        fail("keys must be str, int, float, bool or None, not " + type_name(key));
    }
  }

  void escape_unit(unsigned unit) {
    out_ += "\\u";
    for (int shift = 12; shift >= 0; shift -= 4) out_ += "0123456789abcdef"[unit >> shift & 0xF];
  }

  void quote(std::string_view text) {
    out_ += '"';
    for (size_t pos = 0; pos < text.size();) {
      const size_t begin = pos;
      const char32_t c = next_code_point(text, pos);
      switch (c) {
        case '"':
          out_ += "\\\"";
          break;
        case '\\':
          out_ += "\\\\";
          break;
        case '\n':
          out_ += "\\n";
          break;
        case '\r':
          out_ += "\\r";
          break;
        case '\t':
          out_ += "\\t";
          break;
        case '\f':
          out_ += "\\f";
          break;
        case '\b':
          out_ += "\\b";
          break;
        default:
          if (c < 0x20 || (style_.ensure_ascii && (c > 0x7E && c < 0x10000))) {
            escape_unit(c);
          } else if (style_.ensure_ascii && c >= 0x10000) {
            escape_unit(0xD800 + ((c - 0x10000) >> 10));
            escape_unit(0xDC00 + ((c - 0x10000) & 0x3FF));
          } else {
            out_ += text.substr(begin, pos - begin);
          }
      }
    }
    out_ += '"';
  }

  Runtime& runtime_;
  const JsonStyle& style_;
  std::string out_;
};

}  // namespace

std::string dump_json(Runtime& runtime, const Value& value, const JsonStyle& style) {
  JsonWriter writer(runtime, style);
  writer.write(value, 0);
  return writer.take();
}

}  // namespace vlcache::jinja
