// Parses an expression to a tree, and builds states from the tree: Thompson's construction, since the automaton may be
// ambiguous.
#include "grammar/string_pattern.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "base/error.h"
#include "base/utf8.h"
#include "grammar/json_rules.h"

namespace vlcache {
namespace {

constexpr int kMaxDepth = 64;      // of groups
constexpr int kMaxRepeats = 1000;  // the numbers in braces
// Positions that accept most characters: their masks hold nearly all tokens, some kB and ms each.
constexpr int kMaxWidePlaces = 256;
constexpr int32_t kWide = 10'000;  // characters
constexpr int32_t kLast = 0x10FFFF;

struct Range {
  int32_t low, high;
};
using Set = std::vector<Range>;  // ascending, disjoint, without surrogates

Set normalized(Set set) {
  std::ranges::sort(set, {}, &Range::low);
  Set joined;
  for (const Range& r : set) {
    if (!joined.empty() && r.low <= joined.back().high + 1) {
      joined.back().high = std::max(joined.back().high, r.high);
    } else {
      joined.push_back(r);
    }
  }
  Set out;
  for (const Range& r : joined) {
    if (r.low < 0xD800) out.push_back({r.low, std::min(r.high, 0xD7FF)});
    if (r.high > 0xDFFF) out.push_back({std::max(r.low, 0xE000), r.high});
  }
  return out;
}

Set complement(const Set& set, int32_t last) {
  Set out;
  int32_t next = 0;
  for (const Range& r : normalized(set)) {
    if (r.low > next) out.push_back({next, std::min(r.low - 1, last)});
    next = r.high + 1;
    if (next > last) break;
  }
  if (next <= last) out.push_back({next, last});
  return normalized(std::move(out));
}

const Set kDigitSet = {{'0', '9'}};
const Set kWord = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
const Set kSpaces = {{'\t', '\r'}, {' ', ' '}};
const Set kLineEnds = {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};

struct Node {
  enum class Kind { kSet, kAll, kAny, kRepeat };  // kAll: a sequence; kAny: alternatives
  Kind kind = Kind::kAll;
  Set set;
  std::vector<Node> parts;
  int least = 1, most = 1;  // of kRepeat; most -1: unlimited
};

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  struct Branch {
    Node node;
    bool begins = false, ends = false;  // anchored
  };
  std::vector<Branch> parse() {
    std::vector<Branch> branches;
    do {
      Branch branch;
      branch.begins = take('^');
      branch.node = sequence();
      branch.ends = take('$');
      branches.push_back(std::move(branch));
    } while (take('|'));
    if (!done()) fail("expected its end");
    return branches;
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
  Node alternatives() {
    Node node{.kind = Node::Kind::kAny};
    do {
      node.parts.push_back(sequence());
    } while (take('|'));
    return node;
  }

  Node sequence() {
    Node node{.kind = Node::Kind::kAll};
    while (!done() && peek() != '|' && peek() != ')') {
      if (peek() == '$' && (at_ + 1 == text_.size() || text_[at_ + 1] == '|') && depth_ == 0) break;
      node.parts.push_back(repeated(one()));
    }
    return node;
  }

  Node repeated(Node node) {
    int least = 1, most = 1;
    if (take('*')) {
      least = 0, most = -1;
    } else if (take('+')) {
      most = -1;
    } else if (take('?')) {
      least = 0;
    } else if (peek() == '{') {
      ++at_;
      least = most = number();
      if (take(',')) most = peek() == '}' ? -1 : number();
      if (!take('}')) fail("expected {n}, {n,} or {n,m}");
      if (most >= 0 && least > most) fail("expected {n,m} with n <= m");
    } else {
      return node;
    }
    if (peek() == '+' || peek() == '*' || peek() == '{') fail("a quantifier after another", ErrorCode::kUnsupported);
    take('?');  // lazy: the same texts
    Node repeat{.kind = Node::Kind::kRepeat, .set = {}, .parts = {}, .least = least, .most = most};
    repeat.parts.push_back(std::move(node));
    return repeat;
  }

  int number() {
    int n = 0;
    const size_t begin = at_;
    while (!done() && '0' <= peek() && peek() <= '9' && n <= kMaxRepeats) n = n * 10 + (text_[at_++] - '0');
    if (at_ == begin) fail("expected a number");
    if (n > kMaxRepeats) fail("expected at most " + std::to_string(kMaxRepeats) + " repetitions");
    return n;
  }

  Node one() {
    if (take('(')) return group();
    Node node{.kind = Node::Kind::kSet};
    if (take('[')) {
      node.set = char_class();
    } else if (take('.')) {
      node.set = complement(kLineEnds, kLast);
    } else if (take('\\')) {
      node.set = escape(/*in_class=*/false);
    } else if (peek() == '^' || peek() == '$') {
      fail("^ and $ are supported at its beginning and end only", ErrorCode::kUnsupported);
    } else if (peek() == '*' || peek() == '+' || peek() == '?' || peek() == '{') {
      fail("nothing to repeat");
    } else {
      const int32_t c = character();
      node.set = {{c, c}};
    }
    return node;
  }

  Node group() {
    if (take('?') && !take(':')) {
      fail("groups of this kind (look-around, names, flags) are not supported", ErrorCode::kUnsupported);
    }
    if (++depth_ > kMaxDepth) fail("too many groups within one another");
    Node node = alternatives();
    if (!take(')')) fail("expected )");
    --depth_;
    return node;
  }

  int32_t character() {
    const char32_t c = next_code_point(text_, at_);
    return static_cast<int32_t>(c);
  }

  Set char_class() {
    const bool negated = take('^');
    Set set;
    bool only_characters = true;
    if (peek() == ']') fail("a class that begins with ] must have it as \\]", ErrorCode::kUnsupported);
    while (peek() != ']') {
      if (done()) fail("expected ]");
      if (peek() == '[') fail("[ within a class must be written \\[");
      Set low = class_item(only_characters);
      if (peek() != '-' || text_.substr(at_).starts_with("-]")) {
        set.insert(set.end(), low.begin(), low.end());
        continue;
      }
      ++at_;
      const Set high = class_item(only_characters);
      const bool single =
          low.size() == 1 && high.size() == 1 && low[0].low == low[0].high && high[0].low == high[0].high;
      if (!single || low[0].low > high[0].low) fail("expected a range such as a-z");
      set.push_back({low[0].low, high[0].low});
    }
    ++at_;
    // Readers disagree about the complement of \d, \w and \s beyond ASCII.
    return negated ? complement(set, only_characters ? kLast : 0x7F) : normalized(std::move(set));
  }

  Set class_item(bool& only_characters) {
    if (done()) fail("expected ]");
    if (!take('\\')) {
      const int32_t c = character();
      return {{c, c}};
    }
    const size_t begin = at_;
    Set set = escape(/*in_class=*/true);
    if (std::string_view("dwsDWS").find(text_[begin]) != std::string_view::npos) only_characters = false;
    return set;
  }

  Set escape(bool in_class) {
    if (done()) fail("a \\ at its end");
    const char c = text_[at_];
    const auto is = [](int32_t x) { return Set{{x, x}}; };
    if (static_cast<unsigned char>(c) >= 0x80) fail("an escape that is not known");
    ++at_;
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
};

class States {
 public:
  explicit States(Automaton& automaton) : a_(automaton) {}

  void add(const Node& node, int32_t from, int32_t to) {
    switch (node.kind) {
      case Node::Kind::kSet:
        characters(node.set, from, to);
        break;
      case Node::Kind::kAny:
        for (const Node& part : node.parts) add(part, from, to);
        break;
      case Node::Kind::kAll:
        for (const Node& part : node.parts) {
          const int32_t next = a_.add_state();
          add(part, from, next);
          from = next;
        }
        a_.skip(from, to);
        break;
      case Node::Kind::kRepeat:
        repeat(node, from, to);
        break;
    }
  }

  // Any characters.
  int32_t anything(int32_t from) {
    count_wide();
    const int32_t loop = a_.add_state();
    a_.skip(from, loop);
    json_character(a_, loop, loop);
    return loop;
  }

 private:
  void repeat(const Node& node, int32_t from, int32_t to) {
    for (int i = 0; i < node.least; ++i) from = after(node.parts[0], from);
    if (node.most < 0) {
      const int32_t loop = a_.add_state();
      a_.skip(from, loop);
      a_.skip(after(node.parts[0], loop), loop);
      from = loop;
    }
    for (int i = node.least; i < node.most; ++i) {
      a_.skip(from, to);
      from = after(node.parts[0], from);
    }
    a_.skip(from, to);
  }

  int32_t after(const Node& node, int32_t from) {
    const int32_t to = a_.add_state();
    add(node, from, to);
    return to;
  }

  void count_wide() {
    if (++n_wide_ > kMaxWidePlaces) {
      throw Error(ErrorCode::kInput, "the pattern has more than " + std::to_string(kMaxWidePlaces) +
                                         " places where nearly any character may stand");
    }
  }

  // One of the set's characters, escaped if JSON requires it.
  void characters(const Set& set, int32_t from, int32_t to) {
    int32_t n = 0;
    for (const Range& r : set) n += r.high - r.low + 1;
    if (n > kWide) count_wide();
    // `from` may have other edges: those of the set start in a state of their own.
    const int32_t begin = a_.add_state();
    a_.skip(from, begin);
    for (const Range& r : set) {
      for (int32_t c = r.low; c <= std::min(r.high, 0x7F); ++c) ascii(static_cast<char>(c), begin, to);
      constexpr Range kLengths[] = {{0x80, 0x7FF}, {0x800, 0xFFFF}, {0x10000, kLast}};
      for (const Range& length : kLengths) {
        const int32_t low = std::max(r.low, length.low), high = std::min(r.high, length.high);
        if (low > high) continue;
        std::string first, last;
        append_utf8(first, static_cast<char32_t>(low));
        append_utf8(last, static_cast<char32_t>(high));
        utf8(first, last, begin, to);
      }
    }
  }

  void ascii(char c, int32_t from, int32_t to) {
    constexpr std::string_view kShort = "\b\f\n\r\t", kLetters = "bfnrt";
    if (c == '"' || c == '\\') {
      a_.text(from, std::string("\\") + c, to);
    } else if (const size_t i = kShort.find(c); i != kShort.npos) {
      a_.text(from, std::string("\\") + kLetters[i], to);
    } else if (static_cast<unsigned char>(c) < 0x20) {
      constexpr std::string_view kHex = "0123456789abcdef";
      a_.text(from, std::string("\\u00") + (c < 0x10 ? '0' : '1') + kHex[static_cast<size_t>(c) % 16], to);
    } else {
      a_.bytes(from, static_cast<uint8_t>(c), static_cast<uint8_t>(c), to);
    }
  }

  // Characters from `low` to `high`, both of the same length in bytes.
  void utf8(std::string_view low, std::string_view high, int32_t from, int32_t to) {
    const auto byte = [](char c) { return static_cast<uint8_t>(c); };
    if (low.size() == 1) {
      a_.bytes(from, byte(low[0]), byte(high[0]), to);
      return;
    }
    const std::string least(low.size() - 1, '\x80'), most(low.size() - 1, '\xBF');
    const auto below = [&](uint8_t first, uint8_t last, std::string_view rest, std::string_view rest_high) {
      if (first > last) return;
      const int32_t next = a_.add_state();
      a_.bytes(from, first, last, next);
      utf8(rest, rest_high, next, to);
    };
    uint8_t first = byte(low[0]), last = byte(high[0]);
    if (first == last) {
      below(first, last, low.substr(1), high.substr(1));
      return;
    }
    if (low.substr(1) != least) below(first, first, low.substr(1), most), ++first;
    if (high.substr(1) != most) below(last, last, least, high.substr(1)), --last;
    below(first, last, least, most);
  }

  Automaton& a_;
  int n_wide_ = 0;
};

}  // namespace

void strings_with(Automaton& automaton, std::string_view pattern, int32_t from, int32_t to) {
  if (!is_valid_utf8(pattern)) throw Error(ErrorCode::kInput, "the pattern is not valid UTF-8");
  const std::vector<Parser::Branch> branches = Parser(pattern).parse();
  const int32_t open = automaton.text(from, "\""), close = automaton.add_state();
  automaton.text(close, "\"", to);
  States states(automaton);
  for (const Parser::Branch& branch : branches) {
    const int32_t begin = automaton.add_state(), end = automaton.add_state();
    automaton.skip(branch.begins ? open : states.anything(open), begin);
    states.add(branch.node, begin, end);
    automaton.skip(branch.ends ? end : states.anything(end), close);
  }
}

std::string pattern_of_format(std::string_view format) {
  const std::string year = "(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])";
  const std::string leap_year = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)";
  const std::string date = "(?:" + year + "-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|" +
                           "[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))|" + leap_year + "-02-29)";
  const std::string clock = "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,6})?";
  const std::string time = clock + "(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])";
  const std::string label = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?";
  const std::string host = label + "(?:\\." + label + "){0,5}";
  const std::string byte = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";
  const std::string group = "[0-9a-fA-F]{1,4}";
  if (format == "date") return "^" + date + "$";
  if (format == "time") return "^" + time + "$";
  if (format == "date-time") return "^" + date + "T" + time + "$";
  if (format == "duration") {
    const std::string clock_part =
        "T(?:[0-9]{1,9}H(?:[0-9]{1,9}M(?:[0-9]{1,9}S)?)?|[0-9]{1,9}M(?:[0-9]{1,9}S)?|[0-9]{1,9}S)";
    return "^P(?:[0-9]{1,9}W|" + clock_part +
           "|(?:[0-9]{1,9}Y(?:[0-9]{1,9}M(?:[0-9]{1,9}D)?)?|[0-9]{1,9}M(?:[0-9]{1,9}D)?|" +
           "[0-9]{1,9}D)(?:" + clock_part + ")?)$";
  }
  if (format == "email") return "^[A-Za-z0-9_+-]{1,32}(?:\\.[A-Za-z0-9_+-]{1,31})?@" + host + "$";
  if (format == "hostname") return "^" + host + "$";
  if (format == "ipv4") return "^" + byte + "(?:\\." + byte + "){3}$";
  if (format == "ipv6") {
    std::string all = group + "(?::" + group + "){7}|::";
    for (int n = 1; n <= 7; ++n) {  // groups before ::
      const std::string after = n == 7 ? "" : group + "(?::" + group + "){0," + std::to_string(6 - n) + "}";
      all += "|" + group + "(?::" + group + "){" + std::to_string(n - 1) + "}::" + (n < 7 ? "(?:" + after + ")?" : "");
    }
    all += "|::" + group + "(?::" + group + "){0,6}";
    return "^(?:" + all + ")$";
  }
  if (format == "uuid") return "^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$";
  return "";
}

}  // namespace vlcache
