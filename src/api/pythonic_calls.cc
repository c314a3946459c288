// A recursive-descent parser that writes each literal as JSON.
#include "api/pythonic_calls.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "base/exact_json.h"
#include "base/utf8.h"

namespace vlcache {
namespace {

constexpr int kMaxNesting = 64;
constexpr std::string_view kBlank = " \t\r\n";

// The longest name that the text begins with, before a bracket; "": none.
std::string_view name_before_bracket(std::string_view text, const std::set<std::string>& names) {
  const size_t bracket = text.find('(');
  if (bracket == text.npos) return {};
  std::string_view name = text.substr(0, bracket);
  while (!name.empty() && kBlank.find(name.back()) != kBlank.npos) name.remove_suffix(1);
  return names.contains(std::string(name)) ? name : std::string_view();
}

class PythonReader {
 public:
  explicit PythonReader(std::string_view text) : text_(text) {}

  void space() {
    while (at_ < text_.size() && kBlank.find(text_[at_]) != kBlank.npos) ++at_;
  }
  bool take(std::string_view word) {
    space();
    if (!text_.substr(at_).starts_with(word)) return false;
    at_ += word.size();
    return true;
  }
  std::string_view rest() {
    space();
    return text_.substr(at_);
  }

  // name(key=value, ...); nullopt: none, or one that is not complete.
  std::optional<ToolCall> call(const std::set<std::string>& names) {
    const std::string_view name = name_before_bracket(rest(), names);
    if (name.empty()) return std::nullopt;
    at_ += name.size();
    take("(");
    std::string object = "{";
    while (!take(")")) {
      if (object.size() > 1 && !take(",")) return std::nullopt;
      if (take(")")) break;
      const std::string key = word();
      if (key.empty() || !take("=")) return std::nullopt;
      object += (object.size() > 1 ? "," : "") + quoted(key) + ":";
      if (!value(object, 0)) return std::nullopt;
    }
    object += "}";
    try {
      return ToolCall{std::string(name), dump_exact_json(parse_exact_json(object, ""))};
    } catch (const Error&) {
      return std::nullopt;
    }
  }

 private:
  static std::string quoted(const std::string& text) { return nlohmann::json(text).dump(); }

  // Up to a character that ends a key or a number.
  std::string word() {
    space();
    const size_t end = std::min(text_.find_first_of("=,()[]{}:'\" \t\r\n", at_), text_.size());
    std::string out(text_.substr(at_, end - at_));
    at_ = end;
    return is_valid_utf8(out) ? out : "";
  }

  // Appends the value as JSON.
  bool value(std::string& out, int depth) {
    space();
    if (at_ >= text_.size() || depth > kMaxNesting) return false;
    const char c = text_[at_];
    if (c == '"' || c == '\'') return string(out);
    if (c == '[' || c == '(') return list(out, c == '[' ? "]" : ")", depth);
    if (c == '{') return dictionary(out, depth);
    std::string literal = word();
    if (literal == "True" || literal == "true") return out += "true", true;
    if (literal == "False" || literal == "false") return out += "false", true;
    if (literal == "None" || literal == "null") return out += "null", true;
    if (literal.starts_with('+')) literal.erase(0, 1);
    // 5. and .5 are numbers, too.
    const size_t point = literal.find('.');
    if (point != literal.npos &&
        (point + 1 == literal.size() || literal[point + 1] < '0' || literal[point + 1] > '9')) {
      literal.insert(point + 1, "0");
    }
    if (point != literal.npos && (point == 0 || literal[point - 1] < '0' || literal[point - 1] > '9')) {
      literal.insert(point, "0");
    }
    if (literal.find_first_not_of("-+.0123456789eE") != literal.npos || literal.empty()) return false;
    out += literal;
    return true;
  }

  bool list(std::string& out, std::string_view end, int depth) {
    ++at_;
    out += '[';
    for (bool first = true; !take(end); first = false) {
      if (!first && !take(",")) return false;
      if (take(end)) break;
      if (!first) out += ',';
      if (!value(out, depth + 1)) return false;
    }
    out += ']';
    return true;
  }

  bool dictionary(std::string& out, int depth) {
    ++at_;
    out += '{';
    for (bool first = true; !take("}"); first = false) {
      if (!first && !take(",")) return false;
      if (take("}")) break;
      if (!first) out += ',';
      space();
      const bool is_text = at_ < text_.size() && (text_[at_] == '"' || text_[at_] == '\'');
      if (!is_text || !string(out) || !take(":")) return false;
      out += ':';
      if (!value(out, depth + 1)) return false;
    }
    out += '}';
    return true;
  }

  // With JSON's escapes and Python's; an escape that neither knows stands for itself, as in Python.
  bool string(std::string& out) {
    const char quote = text_[at_++];
    std::string content;
    while (at_ < text_.size() && text_[at_] != quote) {
      const char c = text_[at_++];
      if (c != '\\' || at_ >= text_.size()) {
        content += c;
        continue;
      }
      escape(content, text_[at_++]);
    }
    if (at_ >= text_.size() || !is_valid_utf8(content)) return false;
    ++at_;
    out += quoted(content);
    return true;
  }

  void escape(std::string& content, char c) {
    constexpr std::string_view kLetters = "nrtbfva0", kMeanings("\n\r\t\b\f\v\a\0", 8);
    if (const size_t i = kLetters.find(c); i != kLetters.npos) {
      content += kMeanings[i];
    } else if (c == '\\' || c == '"' || c == '\'' || c == '/') {
      content += c;
    } else if (c == 'x' || c == 'u' || c == 'U') {
      code_point(content, c);
    } else if (c != '\n') {  // a line that goes on
      content += '\\';
      content += c;
    }
  }

  void code_point(std::string& content, char kind) {
    const auto n_digits = kind == 'x' ? size_t{2} : kind == 'u' ? size_t{4} : size_t{8};
    int64_t c = hex(at_, n_digits);
    if (c < 0) {
      content += '\\';
      content += kind;
      return;
    }
    at_ += n_digits;
    if (0xD800 <= c && c < 0xDC00 && text_.substr(at_).starts_with("\\u")) {  // JSON's pairs
      const int64_t low = hex(at_ + 2, 4);
      if (0xDC00 <= low && low < 0xE000) {
        c = 0x10000 + ((c - 0xD800) << 10) + (low - 0xDC00);
        at_ += 6;
      }
    }
    const bool character = c <= 0x10FFFF && (c < 0xD800 || c > 0xDFFF);
    append_utf8(content, character ? static_cast<char32_t>(c) : U'\uFFFD');
  }

  int64_t hex(size_t begin, size_t n) const {
    const std::string digits(text_.substr(std::min(begin, text_.size()), n));
    if (digits.size() != n || digits.find_first_not_of("0123456789abcdefABCDEF") != digits.npos) return -1;
    return std::stoll(digits, nullptr, 16);
  }

  std::string_view text_;
  size_t at_ = 0;
};

}  // namespace

bool may_be_pythonic_calls(std::string_view text, const std::set<std::string>& names) {
  if (text.empty() || text[0] != '[') return text.empty();
  text.remove_prefix(1);
  text.remove_prefix(std::min(text.find_first_not_of(kBlank), text.size()));
  if (text.empty()) return true;
  if (text.find('(') != text.npos) return !name_before_bracket(text, names).empty();
  while (!text.empty() && kBlank.find(text.back()) != kBlank.npos) text.remove_suffix(1);
  for (const std::string& name : names) {
    if (std::string_view(name).starts_with(text)) return true;
  }
  return false;
}

std::vector<ToolCall> parse_pythonic_calls(std::string_view text, const std::set<std::string>& names, bool& ended) {
  std::vector<ToolCall> calls;
  ended = false;
  PythonReader reader(text);
  if (!reader.take("[")) return calls;
  while (std::optional<ToolCall> call = reader.call(names)) {
    calls.push_back(*std::move(call));
    const bool comma = reader.take(",");  // one may also stand at the end
    if (reader.take("]")) {
      ended = reader.rest().empty();
      if (!reader.take("[")) return calls;
    } else if (!comma) {
      return calls;
    }
  }
  return calls;
}

}  // namespace vlcache
