// A recursive-descent parser.
#include "grammar/string_pattern.h"

#include <algorithm>
#include <string>

#include "base/error.h"
#include "base/utf8.h"

namespace vlcache {

CodePointSet normalized(CodePointSet set) {
  std::ranges::sort(set, {}, &CodePoints::low);
  CodePointSet joined;
  for (const CodePoints& r : set) {
    if (!joined.empty() && r.low <= joined.back().high + 1) {
      joined.back().high = std::max(joined.back().high, r.high);
    } else {
      joined.push_back(r);
    }
  }
  CodePointSet out;
  for (const CodePoints& r : joined) {
    if (r.low < 0xD800) out.push_back({r.low, std::min(r.high, 0xD7FF)});
    if (r.high > 0xDFFF) out.push_back({std::max(r.low, 0xE000), r.high});
  }
  return out;
}

CodePointSet complement(const CodePointSet& set, int32_t last) {
  CodePointSet out;
  int32_t next = 0;
  for (const CodePoints& r : normalized(set)) {
    if (r.low > next) out.push_back({next, std::min(r.low - 1, last)});
    next = r.high + 1;
    if (next > last) break;
  }
  if (next <= last) out.push_back({next, last});
  return normalized(std::move(out));
}

namespace {

constexpr int kMaxDepth = 64;        // of groups
constexpr int kMaxRepeats = 10'000;  // the numbers in braces

const CodePointSet kDigitSet = {{'0', '9'}};
const CodePointSet kWord = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
const CodePointSet kSpaces = {{'\t', '\r'}, {' ', ' '}};
const CodePointSet kLineEnds = {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  StringPattern parse() {
    StringPattern regex;
    const size_t begin = at_;
    if (take('^')) {
      while (text_.substr(at_).starts_with("(?=") || text_.substr(at_).starts_with("(?!")) {
        const bool negative = text_[at_ + 2] == '!';
        at_ += 3;
        regex.ahead.push_back({group_rest(), negative});
      }
      if (regex.ahead.empty()) at_ = begin;
    }
    regex.node = alternatives();
    if (!done()) fail("expected its end");
    regex.readers_differ = readers_differ_;
    if (regex.ahead.empty()) return regex;
    if (regex.node.parts.size() > 1)
      fail("look-ahead in one of several alternatives is not supported", ErrorCode::kUnsupported);
    PatternNode anchored{.kind = PatternNode::Kind::kAll};
    anchored.parts.push_back({.kind = PatternNode::Kind::kBegin});
    anchored.parts.push_back(std::move(regex.node));
    regex.node = std::move(anchored);
    return regex;
  }

 private:
  [[noreturn]] void fail(const std::string& what, ErrorCode code = ErrorCode::kInput) const {
    throw Error(code, "the pattern at character " + std::to_string(at_) + ": " + what);
  }
  bool done() const { return at_ == text_.size(); }
  char peek() const { return done() ? '\0' : text_[at_]; }
  bool take(char c) {
    if (done() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  PatternNode alternatives() {
    PatternNode node{.kind = PatternNode::Kind::kAny};
    do {
      node.parts.push_back(sequence());
    } while (take('|'));
    return node;
  }

  PatternNode sequence() {
    PatternNode node{.kind = PatternNode::Kind::kAll};
    while (!done() && peek() != '|' && peek() != ')') {
      if (take('^')) {
        node.parts.push_back({.kind = PatternNode::Kind::kBegin});
      } else if (take('$')) {
        node.parts.push_back({.kind = PatternNode::Kind::kEnd});
      } else {
        node.parts.push_back(repeated(one()));
      }
    }
    return node;
  }

  PatternNode repeated(PatternNode node) {
    int least = 1, most = 1;
    if (take('*')) {
      least = 0, most = -1;
    } else if (take('+')) {
      most = -1;
    } else if (take('?')) {
      least = 0;
    } else if (at_quantifier()) {
      ++at_;
      least = most = number();
      if (take(',')) most = peek() == '}' ? -1 : number();
      if (!take('}')) fail("expected {n}, {n,} or {n,m}");
      if (most >= 0 && least > most) fail("expected {n,m} with n <= m");
    } else {
      return node;
    }
    if (peek() == '+' || peek() == '*' || at_quantifier()) fail("a quantifier after another", ErrorCode::kUnsupported);
    take('?');  // lazy: the same texts
    PatternNode repeat{.kind = PatternNode::Kind::kRepeat, .set = {}, .parts = {}, .least = least, .most = most};
    repeat.parts.push_back(std::move(node));
    return repeat;
  }

  // A brace without a number is a character.
  bool at_quantifier() const {
    return peek() == '{' && at_ + 1 < text_.size() && '0' <= text_[at_ + 1] && text_[at_ + 1] <= '9';
  }

  int number() {
    int n = 0;
    const size_t begin = at_;
    while (!done() && '0' <= peek() && peek() <= '9' && n <= kMaxRepeats) n = n * 10 + (text_[at_++] - '0');
    if (at_ == begin) fail("expected a number");
    if (n > kMaxRepeats) fail("expected at most " + std::to_string(kMaxRepeats) + " repetitions");
    return n;
  }

  PatternNode one() {
    if (take('(')) return group();
    PatternNode node{.kind = PatternNode::Kind::kSet};
    if (take('[')) {
      node.set = char_class();
    } else if (take('.')) {
      node.set = complement(kLineEnds, CodePoints::kLast);
    } else if (take('\\')) {
      node.set = escape(/*in_class=*/false);
    } else if (peek() == '*' || peek() == '+' || peek() == '?' || at_quantifier()) {
      fail("nothing to repeat");
    } else {
      const int32_t c = character();
      node.set = {{c, c}};
    }
    return node;
  }

  PatternNode group() {
    if (take('?') && !take(':')) {
      take('P');
      const bool named = take('<') && peek() != '=' && peek() != '!';
      while (named && !done() && peek() != '>') ++at_;
      if (!named || !take('>')) {
        fail("groups of this kind (look-around elsewhere than after ^ at its beginning, flags) are not supported",
             ErrorCode::kUnsupported);
      }
    }
    return group_rest();
  }

  PatternNode group_rest() {
    if (++depth_ > kMaxDepth) fail("too many groups within one another");
    PatternNode node = alternatives();
    if (!take(')')) fail("expected )");
    --depth_;
    return node;
  }

  int32_t character() {
    const char32_t c = next_code_point(text_, at_);
    return static_cast<int32_t>(c);
  }

  CodePointSet char_class() {
    const bool negated = take('^');
    CodePointSet set;
    bool only_characters = true;
    if (peek() == ']') fail("a class that begins with ] must have it as \\]", ErrorCode::kUnsupported);
    while (peek() != ']') {
      if (done()) fail("expected ]");
      CodePointSet low = class_item(only_characters);
      if (peek() != '-' || text_.substr(at_).starts_with("-]")) {
        set.insert(set.end(), low.begin(), low.end());
        continue;
      }
      ++at_;
      const CodePointSet high = class_item(only_characters);
      const auto single = [](const CodePointSet& item) { return item.size() == 1 && item[0].low == item[0].high; };
      if (!single(low) || !single(high)) {  // of \w-x the three are members
        set.push_back({'-', '-'});
        for (const CodePointSet& item : {low, high}) set.insert(set.end(), item.begin(), item.end());
        continue;
      }
      if (low[0].low > high[0].low) fail("expected a range such as a-z");
      set.push_back({low[0].low, high[0].low});
    }
    ++at_;
    // Readers disagree about the complement of \d, \w and \s beyond ASCII.
    return negated ? complement(set, only_characters ? CodePoints::kLast : 0x7F) : normalized(std::move(set));
  }

  CodePointSet class_item(bool& only_characters) {
    if (done()) fail("expected ]");
    if (!take('\\')) {
      const int32_t c = character();
      return {{c, c}};
    }
    const size_t begin = at_;
    CodePointSet set = escape(/*in_class=*/true);
    if (std::string_view("dwsDWS").find(text_[begin]) != std::string_view::npos) only_characters = false;
    return set;
  }

  CodePointSet escape(bool in_class) {
    if (done()) fail("a \\ at its end");
    const char c = text_[at_];
    const auto is = [](int32_t x) { return CodePointSet{{x, x}}; };
    if (static_cast<unsigned char>(c) >= 0x80) fail("an escape that is not known");
    ++at_;
    if (std::string_view("dwsDWS").find(c) != std::string_view::npos) readers_differ_ = true;
    switch (c) {
      case 'd':
        return kDigitSet;
      case 'D':
        return complement(kDigitSet, 0x7F);
      case 'w':
        return kWord;
      case 'W':
        return complement(kWord, 0x7F);
      case 's':
        return kSpaces;
      case 'S':
        return complement(kSpaces, 0x7F);
      case 'n':
        return is('\n');
      case 't':
        return is('\t');
      case 'r':
        return is('\r');
      case 'f':
        return is('\f');
      case 'v':
        return is('\v');
      case 'u':
        return is(hex(4));
      case 'x':
        return is(hex(2));
      default:
        break;
    }
    if (in_class && c == 'b') return is('\b');
    if (('0' <= c && c <= '9') || ('a' <= c && c <= 'z') || ('A' <= c && c <= 'Z')) {
      fail(std::string("\\") + c + " is not supported", ErrorCode::kUnsupported);
    }
    return is(c);
  }

  int32_t hex(size_t n) {
    const std::string digits(text_.substr(at_, n));
    if (digits.size() != n || digits.find_first_not_of("0123456789abcdefABCDEF") != digits.npos) {
      fail("expected " + std::to_string(n) + " hexadecimal digits");
    }
    at_ += n;
    const auto c = static_cast<int32_t>(std::stol(digits, nullptr, 16));
    if (0xD800 <= c && c <= 0xDFFF) fail("a surrogate", ErrorCode::kUnsupported);
    return c;
  }

  std::string_view text_;
  size_t at_ = 0;
  int depth_ = 0;
  bool readers_differ_ = false;
};

}  // namespace

StringPattern parse_pattern(std::string_view pattern) {
  if (!is_valid_utf8(pattern)) throw Error(ErrorCode::kInput, "the pattern is not valid UTF-8");
  return Parser(pattern).parse();
}

PatternNode literal_pattern(std::string_view text) {
  PatternNode node{.kind = PatternNode::Kind::kAll};
  node.parts.push_back({.kind = PatternNode::Kind::kBegin});
  for (size_t i = 0; i < text.size();) {
    const auto c = static_cast<int32_t>(next_code_point(text, i));
    node.parts.push_back({.kind = PatternNode::Kind::kSet, .set = {{c, c}}});
  }
  node.parts.push_back({.kind = PatternNode::Kind::kEnd});
  return node;
}

}  // namespace vlcache
