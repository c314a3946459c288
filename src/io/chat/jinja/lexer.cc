#include "io/chat/jinja/lexer.h"

#include <algorithm>
#include <array>

#include "io/chat/jinja/number.h"
#include "io/chat/jinja/string_literal.h"
#include "io/chat/jinja/text.h"

namespace vlcache::jinja {
namespace {

// CR and CRLF become LF; one trailing newline is dropped (keep_trailing_newline is off).
std::string normalize_source(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      out += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      out += source[i];
    }
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(normalize_source(source)) {}

  std::vector<Token> run() {
    while (pos_ < source_.size()) lex_text();
    push(TokenType::kEnd, "");
    return std::move(tokens_);
  }

 private:
  std::string_view rest(size_t from) const { return std::string_view(source_).substr(std::min(from, source_.size())); }
  bool starts(size_t at, std::string_view what) const { return rest(at).substr(0, what.size()) == what; }
  [[noreturn]] void fail_at(const std::string& message) const { throw SyntaxError(message, line_); }

  void push(TokenType type, std::string text) {
    Token token;
    token.type = type;
    token.line = line_;
    token.text = std::move(text);
    tokens_.push_back(std::move(token));
  }

  // Moves to `end`, counting lines.
  void advance(size_t end) {
    line_ += static_cast<int>(
        std::count(source_.begin() + static_cast<int64_t>(pos_), source_.begin() + static_cast<int64_t>(end), '\n'));
    line_starting_ = end > pos_ ? source_[end - 1] == '\n' : line_starting_;
    pos_ = end;
  }

  size_t skip_space(size_t at) const {
    while (at < source_.size()) {
      size_t next = at;
      if (!is_space(next_code_point(source_, next))) break;
      at = next;
    }
    return at;
  }

  // The end of `{%- raw -%}` when it stands at `at`, else 0.
  size_t raw_begin_end(size_t at, char& sign) const {
    size_t p = at + 2;
    sign = p < source_.size() && (source_[p] == '-' || source_[p] == '+') ? source_[p++] : 0;
    p = skip_space(p);
    if (!starts(p, "raw")) return 0;
    p = skip_space(p + 3);
    if (starts(p, "-%}")) return skip_space(p + 3);
    return starts(p, "%}") ? p + 2 : 0;
  }

  // Text before a tag, less what the tag's sign and lstrip_blocks take away.
  void push_data(std::string_view text, char sign, bool is_variable) {
    if (sign == '-') {
      text = strip(text, nullptr, Side::kRight);
    } else if (sign != '+' && !is_variable) {
      const size_t newline = text.rfind('\n');
      const size_t line_begin = newline == std::string_view::npos ? 0 : newline + 1;
      if ((line_begin > 0 || line_starting_) && strip(text.substr(line_begin), nullptr, Side::kLeft).empty()) {
        text = text.substr(0, line_begin);
      }
    }
    if (!text.empty()) push(TokenType::kData, std::string(text));
  }

  void lex_text() {
    size_t at = pos_;
    while (true) {
      at = source_.find('{', at);
      if (at == std::string::npos) {
        push(TokenType::kData, source_.substr(pos_));
        advance(source_.size());
        return;
      }
      const char kind = at + 1 < source_.size() ? source_[at + 1] : 0;
      if (kind == '%' || kind == '{' || kind == '#') break;
      ++at;
    }
    const char kind = source_[at + 1];
    char sign = 0;
    if (kind == '%') {
      if (const size_t end = raw_begin_end(at, sign); end != 0) {
        push_data(rest(pos_).substr(0, at - pos_), sign, false);
        advance(end);
        lex_raw();
        return;
      }
    }
    size_t inside = at + 2;
    sign = inside < source_.size() && (source_[inside] == '-' || source_[inside] == '+') ? source_[inside++] : 0;
    push_data(rest(pos_).substr(0, at - pos_), sign, kind == '{');
    if (kind == '#') {
      advance(inside);
      lex_comment();
      return;
    }
    advance(at);
    push(kind == '{' ? TokenType::kVariableBegin : TokenType::kBlockBegin, "");
    advance(inside);
    lex_tag(kind == '{');
  }

  // After `-%}` white space is dropped, after `%}` one newline (trim_blocks), after `+%}` nothing.
  size_t end_of_closing(size_t at, std::string_view closing) const {
    if (starts(at, "+") && starts(at + 1, closing)) return at + 1 + closing.size();
    if (starts(at, "-") && starts(at + 1, closing)) return skip_space(at + 1 + closing.size());
    if (!starts(at, closing)) return 0;
    const size_t end = at + closing.size();
    return starts(end, "\n") ? end + 1 : end;
  }

  void lex_comment() {
    const size_t close = source_.find("#}", pos_);
    if (close == std::string::npos) fail_at("Missing end of comment tag");
    const bool signed_close = close > pos_ && (source_[close - 1] == '-' || source_[close - 1] == '+');
    advance(end_of_closing(signed_close ? close - 1 : close, "#}"));
  }

  void lex_raw() {
    for (size_t at = pos_; (at = source_.find("{%", at)) != std::string::npos; ++at) {
      size_t p = at + 2;
      const char sign = p < source_.size() && (source_[p] == '-' || source_[p] == '+') ? source_[p++] : 0;
      p = skip_space(p);
      if (!starts(p, "endraw")) continue;
      const size_t end = end_of_closing(skip_space(p + 6), "%}");
      if (end == 0) continue;
      push_data(rest(pos_).substr(0, at - pos_), sign, false);
      advance(end);
      return;
    }
    fail_at("Missing end of raw directive");
  }

  void lex_tag(bool variable) {
    std::string open;  // brackets still open: inside them `}}` and `%}` are operators
    while (pos_ < source_.size()) {
      if (open.empty()) {
        size_t end = 0;
        if (!variable) {
          end = end_of_closing(pos_, "%}");
        } else if (starts(pos_, "-}}")) {
          end = skip_space(pos_ + 3);
        } else if (starts(pos_, "}}")) {
          end = pos_ + 2;
        }
        if (end != 0) {
          push(variable ? TokenType::kVariableEnd : TokenType::kBlockEnd, "");
          advance(end);
          return;
        }
      }
      if (const size_t after = skip_space(pos_); after != pos_) {
        advance(after);
        continue;
      }
      if (!lex_number() && !lex_name() && !lex_string()) lex_operator(open);
    }
  }

  // Digits with single underscores between them, from `at`.
  size_t skip_digits(size_t at) const {
    if (at >= source_.size() || !is_digit(source_[at])) return at;
    while (at < source_.size()) {
      if (is_digit(source_[at])) {
        ++at;
      } else if (source_[at] == '_' && at + 1 < source_.size() && is_digit(source_[at + 1])) {
        ++at;
      } else {
        break;
      }
    }
    return at;
  }

  // The end of a float at pos_, or 0.
  size_t float_end() const {
    if (pos_ > 0 && source_[pos_ - 1] == '.') return 0;
    const size_t whole = skip_digits(pos_);
    size_t end = whole;
    bool is_float = false;
    if (starts(whole, ".")) {
      const size_t fraction = skip_digits(whole + 1);
      if (fraction > whole + 1) {
        end = fraction;
        is_float = true;
      }
    }
    if (end < source_.size() && (source_[end] == 'e' || source_[end] == 'E')) {
      size_t digits = end + 1;
      if (digits < source_.size() && (source_[digits] == '+' || source_[digits] == '-')) ++digits;
      const size_t exponent = skip_digits(digits);
      if (exponent > digits) {
        end = exponent;
        is_float = true;
      }
    }
    return is_float ? end : 0;
  }

  size_t integer_end() const {
    const char kind = pos_ + 1 < source_.size() ? static_cast<char>(source_[pos_ + 1] | 0x20) : 0;
    const auto in_base = [kind](char c) {
      if (kind == 'b') return c == '0' || c == '1';
      if (kind == 'o') return c >= '0' && c <= '7';
      return is_digit(c) || ((c | 0x20) >= 'a' && (c | 0x20) <= 'f');
    };
    if (source_[pos_] == '0' && (kind == 'b' || kind == 'o' || kind == 'x')) {
      size_t at = pos_ + 2;
      while (at < source_.size()) {
        const size_t digit = source_[at] == '_' ? at + 1 : at;
        if (digit >= source_.size() || !in_base(source_[digit])) break;
        at = digit + 1;
      }
      if (at > pos_ + 2) return at;
    }
    if (source_[pos_] != '0') return skip_digits(pos_);
    size_t at = pos_ + 1;  // a decimal that starts with 0 is only zeros
    while (at < source_.size() && (source_[at] == '0' || (source_[at] == '_' && starts(at + 1, "0")))) ++at;
    return at;
  }

  bool lex_number() {
    if (!is_digit(source_[pos_])) return false;
    const size_t end_of_float = float_end();
    const size_t end = end_of_float != 0 ? end_of_float : integer_end();
    std::string text = source_.substr(pos_, end - pos_);
    text.erase(std::remove(text.begin(), text.end(), '_'), text.end());
    push(end_of_float != 0 ? TokenType::kFloat : TokenType::kInteger, text);
    if (end_of_float != 0) {
      tokens_.back().real = parse_float(text).value_or(0);
    } else {
      try {
        tokens_.back().integer = parse_int(text, 0).value_or(0);
      } catch (const RenderError& e) {
        fail_at(e.what());
      }
    }
    advance(end);
    return true;
  }

  bool lex_name() {
    size_t end = pos_;
    while (end < source_.size()) {
      size_t next = end;
      const char32_t c = next_code_point(source_, next);
      const bool part = c < 0x80 ? c == '_' || std::isalnum(static_cast<int>(c)) != 0
                                 : all_of_class(std::string_view(source_).substr(end, next - end), CharClass::kAlnum) ||
                                       all_of_class("a" + source_.substr(end, next - end), CharClass::kIdentifier);
      if (!part) break;
      end = next;
    }
    if (end == pos_) return false;
    const std::string name = source_.substr(pos_, end - pos_);
    if (!all_of_class(name, CharClass::kIdentifier)) fail_at("Invalid character in identifier");
    push(TokenType::kName, name);
    advance(end);
    return true;
  }

  bool lex_string() {
    const char quote = source_[pos_];
    if (quote != '\'' && quote != '"') return false;
    size_t end = pos_ + 1;
    while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size()) return false;
    try {
      push(TokenType::kString, unescape_literal(rest(pos_ + 1).substr(0, end - pos_ - 1)));
    } catch (const RenderError& e) {
      fail_at(e.what());
    }
    advance(end + 1);
    return true;
  }

  void lex_operator(std::string& open) {
    static constexpr std::array<std::string_view, 6> kLong = {"//", "**", "==", "!=", ">=", "<="};
    for (const std::string_view op : kLong) {
      if (!starts(pos_, op)) continue;
      push(TokenType::kOperator, std::string(op));
      advance(pos_ + 2);
      return;
    }
    const char c = source_[pos_];
    if (std::string_view("+-/*%~[](){}><=.:|,;").find(c) == std::string_view::npos) {
      size_t next = pos_;
      next_code_point(source_, next);
      fail_at("unexpected char " + repr(rest(pos_).substr(0, next - pos_)) + " at " +
              std::to_string(count_code_points(rest(0).substr(0, pos_))));
    }
    if (c == '(' || c == '[' || c == '{') open += c == '(' ? ')' : c == '[' ? ']' : '}';
    if (c == ')' || c == ']' || c == '}') {
      if (open.empty()) fail_at(std::string("unexpected '") + c + "'");
      if (open.back() != c) fail_at(std::string("unexpected '") + c + "', expected '" + open.back() + "'");
      open.pop_back();
    }
    push(TokenType::kOperator, std::string(1, c));
    advance(pos_ + 1);
  }

  std::string source_;
  size_t pos_ = 0;
  int line_ = 1;
  bool line_starting_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source) { return Lexer(source).run(); }

std::string describe(const Token& token) {
  switch (token.type) {
    case TokenType::kData:
      return "template data / text";
    case TokenType::kBlockBegin:
      return "begin of statement block";
    case TokenType::kBlockEnd:
      return "end of statement block";
    case TokenType::kVariableBegin:
      return "begin of print statement";
    case TokenType::kVariableEnd:
      return "end of print statement";
    case TokenType::kString:
      return "string";
    case TokenType::kInteger:
      return "integer";
    case TokenType::kFloat:
      return "float";
    case TokenType::kEnd:
      return "end of template";
    default:
      return token.text;
  }
}

}  // namespace vlcache::jinja
