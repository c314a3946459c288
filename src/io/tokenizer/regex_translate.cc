// Translates Oniguruma (Ruby syntax, UTF-8) to PCRE2. A small recursive parser, because meaning depends on structure:
// {n,m}+ repeats in Oniguruma and is possessive in PCRE2, (?m) is (?s), (?i) reaches over |, classes nest and
// intersect, \h is a hex digit, \s, \w and POSIX brackets hold other characters.
#include <algorithm>
#include <array>
#include <cstdio>
#include <span>
#include <utility>

#include "base/error.h"
#include "base/utf8.h"
#include "io/tokenizer/regex.h"

namespace vlcache {
namespace {

constexpr size_t kMaxPattern = 16384;  // the longest in use is below 1000 bytes
constexpr int kMaxDepth = 100;

// Items to stand inside [...].
constexpr std::string_view kSpace =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
constexpr std::string_view kHex = "0-9a-fA-F";
constexpr std::string_view kWordInClass = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc})";
// Superscripts and vulgar fractions are \w in Oniguruma, but not [\w].
constexpr std::string_view kWord = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{b2}\x{b3}\x{b9}\x{bc}-\x{be})";
// Includes characters that became alphabetic or lower case between Unicode 14 and 16.
constexpr std::string_view kAlphabetic =
    R"(\p{Alphabetic}\x{363}-\x{36f}\x{c04}\x{f82}-\x{f83}\x{1dd3}-\x{1de6}\x{11080}-\x{11081})";
constexpr std::string_view kAlphanumeric =
    R"(\p{Alphabetic}\x{363}-\x{36f}\x{c04}\x{f82}-\x{f83}\x{1dd3}-\x{1de6}\x{11080}-\x{11081}\p{Nd})";
constexpr std::string_view kLowercase = R"(\p{Lowercase}\x{10fc}\x{a7f2}-\x{a7f4}\x{ab69})";

using Named = std::pair<std::string_view, std::string_view>;
constexpr auto kPosix = std::to_array<Named>({{"alpha", kAlphabetic},
                                              {"digit", R"(\p{Nd})"},
                                              {"alnum", kAlphanumeric},
                                              {"upper", R"(\p{Uppercase})"},
                                              {"lower", kLowercase},
                                              {"space", kSpace},
                                              {"punct", R"(\p{P}\p{S})"},
                                              {"cntrl", R"(\p{Cc})"},
                                              {"blank", R"(\x{9}\p{Zs})"},
                                              {"xdigit", kHex},
                                              {"word", kWordInClass}});
constexpr auto kCategories = std::to_array<Named>({{"letter", "L"},
                                                   {"uppercaseletter", "Lu"},
                                                   {"lowercaseletter", "Ll"},
                                                   {"titlecaseletter", "Lt"},
                                                   {"casedletter", "L&"},
                                                   {"lc", "L&"},
                                                   {"modifierletter", "Lm"},
                                                   {"otherletter", "Lo"},
                                                   {"mark", "M"},
                                                   {"nonspacingmark", "Mn"},
                                                   {"spacingmark", "Mc"},
                                                   {"enclosingmark", "Me"},
                                                   {"number", "N"},
                                                   {"decimalnumber", "Nd"},
                                                   {"letternumber", "Nl"},
                                                   {"othernumber", "No"},
                                                   {"punctuation", "P"},
                                                   {"connectorpunctuation", "Pc"},
                                                   {"dashpunctuation", "Pd"},
                                                   {"openpunctuation", "Ps"},
                                                   {"closepunctuation", "Pe"},
                                                   {"initialpunctuation", "Pi"},
                                                   {"finalpunctuation", "Pf"},
                                                   {"otherpunctuation", "Po"},
                                                   {"symbol", "S"},
                                                   {"mathsymbol", "Sm"},
                                                   {"currencysymbol", "Sc"},
                                                   {"modifiersymbol", "Sk"},
                                                   {"othersymbol", "So"},
                                                   {"separator", "Z"},
                                                   {"spaceseparator", "Zs"},
                                                   {"lineseparator", "Zl"},
                                                   {"paragraphseparator", "Zp"},
                                                   {"other", "C"},
                                                   {"control", "Cc"},
                                                   {"format", "Cf"},
                                                   {"privateuse", "Co"},
                                                   {"unassigned", "Cn"}});
constexpr std::string_view kCategoryLetters =
    "|l|lu|ll|lt|lm|lo|m|mn|mc|me|n|nd|nl|no|p|pc|pd|ps|pe|pi|pf|po|s|sm|sc|sk|so|z|zs|zl|zp|c|cc|cf|cn|co|";
constexpr std::string_view kBinary =
    "|any|ascii|emoji|emojipresentation|emojimodifier|emojimodifierbase|extendedpictographic|ideographic|";

std::string_view find_named(std::span<const Named> table, std::string_view key) {
  for (const Named& row : table) {
    if (row.first == key) return row.second;
  }
  return {};
}

// A set of characters: items inside brackets, and expressions for one character that brackets cannot hold.
struct CharacterSet {
  std::string items;
  std::vector<std::string> alternatives;

  bool empty() const { return items.empty() && alternatives.empty(); }
  std::string expression(bool negated) const {
    if (empty()) return negated ? "(?s:.)" : "(?!)";
    if (alternatives.empty()) return (negated ? "[^" : "[") + items + "]";
    std::string any = items.empty() ? "" : "[" + items + "]";
    for (const std::string& a : alternatives) any += (any.empty() ? "" : "|") + a;
    return negated ? "(?:(?!" + any + ")(?s:.))" : "(?:" + any + ")";
  }
};

class Translator {
 public:
  Translator(std::string_view pattern, std::string_view where) : pattern_(pattern), where_(where) {}

  std::string translate() {
    if (pattern_.size() > kMaxPattern) fail("longer than " + std::to_string(kMaxPattern) + " bytes");
    if (!is_valid_utf8(pattern_)) fail("not UTF-8");
    std::string out = alternation(0);
    if (i_ < pattern_.size()) fail("a ) without its (");
    return out;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw Error(ErrorCode::kUnsupported, std::string(where_) + ": regular expression \"" +
                                             std::string(pattern_.substr(0, 200)) + "\": unsupported at byte " +
                                             std::to_string(i_) + ": " + what);
  }
  bool more() const { return i_ < pattern_.size(); }
  bool at(std::string_view s) const { return pattern_.substr(i_).starts_with(s); }
  bool take(std::string_view s) {
    if (!at(s)) return false;
    i_ += s.size();
    return true;
  }

  static std::string literal(char32_t c) {
    const bool plain = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_';
    std::string out;
    if (!plain && c > 0x20 && c < 0x7F) {
      out += '\\';
    } else if (c <= 0x20 || c == 0x7F) {
      char buffer[16];
      std::snprintf(buffer, sizeof buffer, "\\x{%x}", static_cast<unsigned>(c));
      return buffer;
    }
    append_utf8(out, c);
    return out;
  }

  std::string alternation(int depth) {
    if (depth > kMaxDepth) fail("nested deeper than " + std::to_string(kMaxDepth) + " groups");
    std::string out = sequence(depth);
    while (take("|")) out += "|" + sequence(depth);
    return out;
  }

  std::string sequence(int depth) {
    std::string out;
    while (more() && !at("|") && !at(")")) {
      std::string one = atom(depth);
      quantifiers(one);
      out += one;
    }
    return out;
  }

  // Wraps `one` in the quantifiers that follow it.
  void quantifiers(std::string& one) {
    for (bool first = true; more(); first = false) {
      std::string q;
      bool fixed = false;
      const bool interval = at("{");
      if (interval) {
        if (!take_interval(q, fixed)) return;
      } else if (at("?") || at("*") || at("+")) {
        q = pattern_[i_++];
      } else {
        return;
      }
      if (one.empty()) fail("nothing to repeat");
      if (!first) one = "(?:" + one + ")";
      // In Ruby's syntax an interval is never possessive, and one of fixed length never lazy: the sign is a quantifier
      // again.
      if (at("?") && !fixed) {
        q += pattern_[i_++];
      } else if (at("+") && !interval) {
        q += pattern_[i_++];
      }
      one += q;
    }
  }

  // {n}, {n,}, {n,m}, {,m}; anything else is a literal brace and not consumed.
  bool take_interval(std::string& q, bool& fixed) {
    size_t k = i_ + 1;
    const auto digits = [&] {
      const size_t start = k;
      while (k < pattern_.size() && pattern_[k] >= '0' && pattern_[k] <= '9' && k - start < 6) ++k;
      return std::string(pattern_.substr(start, k - start));
    };
    const std::string low = digits();
    const bool comma = k < pattern_.size() && pattern_[k] == ',';
    if (comma) ++k;
    const std::string high = comma ? digits() : "";
    if (k >= pattern_.size() || pattern_[k] != '}' || (low.empty() && high.empty())) return false;
    if (!low.empty() && !high.empty() && std::stoi(low) > std::stoi(high))
      fail("an interval whose bounds are reversed");
    fixed = !comma;
    q = "{" + (low.empty() ? "0" : low) + (comma ? "," + high : "") + "}";
    i_ = k + 1;
    return true;
  }

  std::string atom(int depth) {
    if (at("(")) return group(depth);
    if (take("[")) {
      return character_class(depth + 1);
    }
    if (take(".")) return ".";
    if (take("^")) return "^";
    if (take("$")) return "$";
    if (at("\\")) return escape();
    if (at("?") || at("*") || at("+")) fail("nothing to repeat");
    return literal(next_code_point(pattern_, i_));
  }

  std::string group(int depth) {
    ++i_;  // (
    if (!take("?")) return finish_group("(", depth);
    for (std::string_view plain : {":", "=", "!", ">", "<=", "<!"}) {
      if (take(plain)) return finish_group("(?" + std::string(plain), depth);
    }
    if (take("#")) {
      while (more() && !at(")")) i_ += at("\\") ? 2 : 1;
      if (!take(")")) fail("a comment that does not end");
      return "(?:)";
    }
    if (at("<") || at("'")) {
      const char close = pattern_[i_] == '<' ? '>' : '\'';
      const size_t end = pattern_.find(close, i_ + 1);
      if (end == std::string_view::npos) fail("a group name that does not end");
      const std::string name(pattern_.substr(i_ + 1, end - i_ - 1));
      i_ = end + 1;
      return finish_group("(?<" + name + ">", depth);
    }
    return options(depth);
  }

  std::string finish_group(const std::string& open, int depth) {
    std::string out = open + alternation(depth + 1);
    if (!take(")")) fail("a ( without its )");
    return out + ")";
  }

  // (?im-x:...) and (?im-x), the latter up to the end of the enclosing group, over its alternatives.
  std::string options(int depth) {
    std::string flags;
    for (; more() && !at(":") && !at(")"); ++i_) {
      const char c = pattern_[i_];
      if (c != 'i' && c != 'm' && c != '-') fail("group option " + std::string(1, c));
      flags += c == 'm' ? 's' : c;
    }
    if (take(":")) return finish_group("(?" + flags + ":", depth);
    if (!take(")")) fail("a ( without its )");
    return "(?" + flags + ":" + alternation(depth + 1) + ")";
  }

  std::string escape() {
    const char c = i_ + 1 < pattern_.size() ? pattern_[i_ + 1] : '\0';
    for (char same : {'A', 'z', 'Z', 'G', 'K', 'R'}) {
      if (c == same) {
        i_ += 2;
        return std::string("\\") + c;
      }
    }
    if (c == 'b' || c == 'B') {
      i_ += 2;
      const std::string word = "[" + std::string(kWord) + "]";
      const std::string in = "(?<=" + word + ")", out = "(?<!" + word + ")", to = "(?=" + word + ")",
                        off = "(?!" + word + ")";
      return c == 'b' ? "(?:" + in + off + "|" + out + to + ")" : "(?:" + in + to + "|" + out + off + ")";
    }
    if (c == 'w' || c == 'W') {
      i_ += 2;
      return std::string(c == 'w' ? "[" : "[^") + std::string(kWord) + "]";
    }
    if (c >= '1' && c <= '9') {
      i_ += 2;
      if (more() && pattern_[i_] >= '0' && pattern_[i_] <= '9') fail("a back reference of two digits");
      return std::string("\\g{") + c + "}";
    }
    if (c == 'k') {
      i_ += 2;
      const size_t end = pattern_.find('>', i_);
      if (!at("<") || end == std::string_view::npos) fail("\\k without <name>");
      const std::string name(pattern_.substr(i_ + 1, end - i_ - 1));
      i_ = end + 1;
      return "\\k{" + name + "}";
    }
    CharacterSet set;
    const char32_t one = escaped_character(set);
    return one == kNone ? set.expression(false) : literal(one);
  }

  static constexpr char32_t kNone = 0xFFFFFFFF;

  // After a backslash, inside or outside brackets: one character, or (kNone) a set that is added to `set`.
  char32_t escaped_character(CharacterSet& set) {
    ++i_;
    if (!more()) fail("a \\ at the end");
    const char32_t c = next_code_point(pattern_, i_);
    switch (c) {
      case 's':
        return add(set, kSpace, false);
      case 'S':
        return add(set, kSpace, true);
      case 'd':
        return add(set, R"(\p{Nd})", false);
      case 'D':
        return add(set, R"(\p{Nd})", true);
      case 'h':
        return add(set, kHex, false);
      case 'H':
        return add(set, kHex, true);
      case 'w':
        return add(set, kWordInClass, false);
      case 'W':
        return add(set, kWordInClass, true);
      case 'p':
        return property(set, false);
      case 'P':
        return property(set, true);
      case 't':
        return '\t';
      case 'n':
        return '\n';
      case 'r':
        return '\r';
      case 'f':
        return '\f';
      case 'v':
        return '\v';
      case 'a':
        return '\a';
      case 'e':
        return 0x1B;
      case 'x':
        return take("{") ? hex(1, 8, true) : hex(1, 2, false);
      case 'u':
        return hex(4, 4, false);
      case '0':
        if (more() && pattern_[i_] >= '0' && pattern_[i_] <= '7') fail("an octal escape");
        return 0;
      default:
        break;
    }
    if ((c >= '1' && c <= '9') ||
        std::string_view("bBcCMNOXyYgoRKAzZGk").find(static_cast<char>(c < 0x80 ? c : '?')) != std::string_view::npos) {
      fail("escape \\" + std::string(1, static_cast<char>(c)));
    }
    return c;
  }

  static char32_t add(CharacterSet& set, std::string_view items, bool negated) {
    if (negated) {
      set.alternatives.push_back("[^" + std::string(items) + "]");
    } else {
      set.items += items;
    }
    return kNone;
  }

  char32_t hex(size_t min_digits, size_t max_digits, bool braced) {
    char32_t value = 0;
    size_t n = 0;
    for (; n < max_digits && more(); ++n, ++i_) {
      const char c = pattern_[i_];
      const int digit = c >= '0' && c <= '9'   ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : -1;
      if (digit < 0) break;
      value = value * 16 + static_cast<char32_t>(digit);
    }
    if (n < min_digits || (braced && !take("}"))) fail("a hexadecimal escape that is cut short");
    if (value > 0x10FFFF || (value >= 0xD800 && value < 0xE000)) fail("an escape that is no character");
    if (!braced && max_digits == 2 && value >= 0x80) fail("\\x80 and above, which is a raw byte");
    return value;
  }

  // {Name} or {^Name} after \p or \P.
  char32_t property(CharacterSet& set, bool negated) {
    if (!take("{")) fail("\\p without {name}");
    if (take("^")) negated = !negated;
    const size_t end = pattern_.find('}', i_);
    if (end == std::string_view::npos) fail("\\p{ that does not end");
    std::string key, name;
    for (char c : pattern_.substr(i_, end - i_)) {
      const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
      if (!letter && c != '_' && c != '-' && c != ' ') fail("a property name with an odd character");
      if (letter) key += static_cast<char>(c | 0x20);
      if (letter || c == '_') name += c;
    }
    const std::string listed = "|" + key + "|";
    const std::string_view category = find_named(kCategories, key);
    const std::string_view posix = find_named(kPosix, key);
    std::string items;
    if (!category.empty()) {
      items = "\\p{" + std::string(category) + "}";
    } else if (kCategoryLetters.find(listed) != std::string_view::npos) {
      key[0] = static_cast<char>(key[0] & ~0x20);
      items = "\\p{" + key + "}";
    } else if (key == "word") {
      items = kWord;
    } else if (key == "punct") {
      items = R"(\p{P})";  // [:punct:] includes symbols
    } else if (!posix.empty()) {
      items = posix;
    } else if (key == "alphabetic" || key == "lowercase" || key == "uppercase") {
      items = find_named(kPosix, key.substr(0, 5));
    } else if (key == "whitespace") {
      items = kSpace;
    } else if (kBinary.find(listed) != std::string_view::npos) {
      items = "\\p{" + key + "}";
    } else {
      items = "\\p{sc:" + name + "}";  // a script (not its extensions); PCRE2 rejects unknown names
    }
    i_ = end + 1;
    return add(set, items, negated);
  }

  // Called after the [; returns an expression for one character.
  std::string character_class(int depth) {
    if (depth > kMaxDepth) fail("nested deeper than " + std::to_string(kMaxDepth) + " brackets");
    const bool negated = take("^");
    if (at("]")) fail("an empty character class");
    std::vector<std::string> intersected;
    CharacterSet set;
    for (;;) {
      if (!more()) fail("a [ without its ]");
      if (take("]")) break;
      if (take("&&")) {
        intersected.push_back(set.expression(false));
        set = {};
      } else {
        class_member(set, depth);
      }
    }
    if (intersected.empty()) return set.expression(negated);
    std::string both;
    for (const std::string& e : intersected) both += "(?=" + e + ")";
    both += set.expression(false);
    return negated ? "(?:(?!" + both + ")(?s:.))" : "(?:" + both + ")";
  }

  void class_member(CharacterSet& set, int depth) {
    if (take("[:")) {
      const bool negated = take("^");
      const size_t end = pattern_.find(":]", i_);
      const std::string_view items =
          end == std::string_view::npos ? std::string_view() : find_named(kPosix, pattern_.substr(i_, end - i_));
      if (items.empty()) fail("a POSIX bracket");
      i_ = end + 2;
      add(set, items, negated);
      return;
    }
    if (take("[")) {
      set.alternatives.push_back(character_class(depth + 1));
      return;
    }
    const char32_t first = class_character(set);
    if (first == kNone || !at("-") || at("-]") || at("-&&") || at("-[")) {
      if (first != kNone) set.items += literal(first);
      return;
    }
    ++i_;  // -
    const char32_t last = class_character(set);
    if (last == kNone || last < first) fail("a range of characters that is none");
    set.items += literal(first) + "-" + literal(last);
  }

  char32_t class_character(CharacterSet& set) {
    if (!more()) fail("a [ without its ]");
    if (at("\\b")) {
      i_ += 2;
      return 0x08;
    }
    return at("\\") ? escaped_character(set) : next_code_point(pattern_, i_);
  }

  std::string_view pattern_;
  std::string_view where_;
  size_t i_ = 0;
};

}  // namespace

std::string translate_oniguruma(std::string_view pattern, std::string_view where) {
  return Translator(pattern, where).translate();
}

}  // namespace vlcache
