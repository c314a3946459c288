// Context-free grammars in llama.cpp's form. No rule of an automaton accepts the empty text, so each rule becomes that
// of its other texts, and a call of a rule that has the empty one may also be skipped.
#include <algorithm>
#include <map>
#include <optional>

#include "base/error.h"
#include "base/utf8.h"
#include "grammar/character_edges.h"
#include "grammar/text_rules.h"

namespace vlcache {
namespace {

constexpr int kMaxGroups = 64;         // within one another
constexpr int kMaxInARow = 4;          // in a row
constexpr int kMaxTimes = 10'000;      // the numbers in braces
constexpr size_t kMaxBytes = 1 << 18;  // of a grammar
constexpr int32_t kUnlimited = -1;

struct Expression {
  enum class Kind { kSet, kAll, kAny, kRepeat, kRule };
  Kind kind = Kind::kAll;
  CodePointSet set;
  std::vector<Expression> parts;
  int32_t least = 1, most = 1;  // of kRepeat
  size_t rule = 0;              // of kRule
};

struct NamedRule {
  std::string name;
  std::optional<Expression> body;  // none: not defined (yet)
  size_t used_at = 0;
  bool may_be_empty = false;
};

class Reader {
 public:
  Reader(std::string_view text, const std::string& where) : text_(text), where_(where) {}

  std::vector<NamedRule> read() {
    space();
    while (at_ < text_.size()) {
      const size_t begin = at_;
      const size_t rule = index(name());
      space();
      if (!take("::=")) fail("expected ::= after the name of a rule");
      space();
      Expression body = alternatives();
      if (rules_[rule].body) fail("the rule \"" + rules_[rule].name + "\" is there twice", begin);
      rules_[rule].body = std::move(body);
    }
    for (const NamedRule& rule : rules_) {
      if (!rule.body) fail("the rule \"" + rule.name + "\" is not defined", rule.used_at);
    }
    return std::move(rules_);
  }
  size_t root() const {
    const auto at = numbers_.find("root");
    if (at == numbers_.end()) throw Error(ErrorCode::kInput, where_ + ": expected a rule named root");
    return at->second;
  }

 private:
  [[noreturn]] void fail(const std::string& what, std::optional<size_t> at = std::nullopt,
                         ErrorCode code = ErrorCode::kInput) const {
    const std::string_view before = text_.substr(0, std::min(at.value_or(at_), text_.size()));
    const auto line = 1 + std::ranges::count(before, '\n');
    throw Error(code, where_ + ": line " + std::to_string(line) + ": " + what);
  }
  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  bool take(std::string_view word) {
    if (!text_.substr(at_).starts_with(word)) return false;
    at_ += word.size();
    return true;
  }
  void space() {
    while (at_ < text_.size()) {
      if (peek() == '#') {
        at_ = std::min(text_.find('\n', at_), text_.size());
      } else if (peek() == ' ' || peek() == '\t' || peek() == '\n' || peek() == '\r') {
        ++at_;
      } else {
        return;
      }
    }
  }
  static bool in_name(char c) {
    return ('a' <= c && c <= 'z') || ('A' <= c && c <= 'Z') || ('0' <= c && c <= '9') || c == '-' || c == '_';
  }
  std::string name() {
    const size_t begin = at_;
    while (in_name(peek())) ++at_;
    if (at_ == begin) fail("expected the name of a rule");
    return std::string(text_.substr(begin, at_ - begin));
  }
  size_t index(const std::string& name) {
    const auto [at, is_new] = numbers_.try_emplace(name, rules_.size());
    if (is_new) rules_.push_back({.name = name, .body = std::nullopt, .used_at = at_});
    return at->second;
  }

  Expression alternatives() {
    Expression any{.kind = Expression::Kind::kAny};
    do {
      space();
      any.parts.push_back(sequence());
    } while (take("|"));
    return any;
  }

  // Up to a |, a ) or the next rule.
  Expression sequence() {
    Expression all{.kind = Expression::Kind::kAll};
    while (at_ < text_.size() && peek() != '|' && peek() != ')') {
      if (in_name(peek())) {
        const size_t begin = at_;
        const std::string called = name();
        space();
        if (text_.substr(at_).starts_with("::=")) {
          at_ = begin;
          break;
        }
        const Expression call{
            .kind = Expression::Kind::kRule, .set = {}, .parts = {}, .least = 1, .most = 1, .rule = index(called)};
        all.parts.push_back(repeated(call));
      } else {
        all.parts.push_back(repeated(one()));
      }
      space();
    }
    return all;
  }

  Expression one() {
    Expression e{.kind = Expression::Kind::kSet};
    if (take("\"")) return literal();
    if (take("[")) {
      e.set = char_class();
    } else if (take(".")) {
      e.set = complement({});
    } else if (take("(")) {
      if (++depth_ > kMaxGroups) fail("too many groups within one another");
      e = alternatives();
      if (!take(")")) fail("expected )");
      --depth_;
    } else if (peek() == '<') {
      fail("tokens (<...>) are not supported; write their texts", std::nullopt, ErrorCode::kUnsupported);
    } else {
      fail("expected a literal, a class, a group or the name of a rule");
    }
    return e;
  }

  Expression repeated(Expression e) {
    for (int n = 0;; ++n) {
      space();
      int32_t least = 0, most = kUnlimited;
      if (take("?")) {
        most = 1;
      } else if (take("+")) {
        least = 1;
      } else if (take("{")) {
        space();
        least = most = number();
        space();
        if (take(",")) {
          space();
          most = peek() == '}' ? kUnlimited : number();
          space();
        }
        if (!take("}")) fail("expected {n}, {n,} or {n,m}");
        if (most != kUnlimited && least > most) fail("expected {n,m} with n <= m");
      } else if (!take("*")) {
        return e;
      }
      Expression repeat{.kind = Expression::Kind::kRepeat, .set = {}, .parts = {}, .least = least, .most = most};
      repeat.parts.push_back(std::move(e));
      e = std::move(repeat);
      if (n == kMaxInARow) fail("too many repetitions in a row");
    }
  }

  int32_t number() {
    int32_t n = 0;
    const size_t begin = at_;
    while ('0' <= peek() && peek() <= '9' && n <= kMaxTimes) n = n * 10 + (text_[at_++] - '0');
    if (at_ == begin) fail("expected a number");
    if (n > kMaxTimes) fail("expected at most " + std::to_string(kMaxTimes) + " repetitions");
    return n;
  }

  Expression literal() {
    Expression all{.kind = Expression::Kind::kAll};
    while (!take("\"")) {
      const int32_t c = character();
      all.parts.push_back({.kind = Expression::Kind::kSet, .set = {{c, c}}});
    }
    return all;
  }

  CodePointSet char_class() {
    const bool negated = take("^");
    CodePointSet set;
    while (!take("]")) {
      const int32_t low = character();
      int32_t high = low;
      if (peek() == '-' && !text_.substr(at_).starts_with("-]")) {
        ++at_;
        high = character();
      }
      if (low > high) fail("expected a range such as a-z");
      set.push_back({low, high});
    }
    return negated ? complement(set) : normalized(std::move(set));
  }

  int32_t character() {
    if (at_ >= text_.size()) fail("expected the end of a literal or class");
    if (!take("\\")) return static_cast<int32_t>(next_code_point(text_, at_));
    const char c = peek();
    ++at_;
    switch (c) {
      case 'n':
        return '\n';
      case 'r':
        return '\r';
      case 't':
        return '\t';
      case 'x':
        return hex(2);
      case 'u':
        return hex(4);
      case 'U':
        return hex(8);
      default:
        break;
    }
    if (std::string_view("\\\"[]-^'./").find(c) == std::string_view::npos) fail("an escape that is not known");
    return c;
  }

  int32_t hex(size_t n) {
    const std::string digits(text_.substr(at_, n));
    if (digits.size() != n || digits.find_first_not_of("0123456789abcdefABCDEF") != digits.npos) {
      fail("expected " + std::to_string(n) + " hexadecimal digits");
    }
    at_ += n;
    const int64_t c = std::stoll(digits, nullptr, 16);
    if (c > CodePoints::kLast || (0xD800 <= c && c <= 0xDFFF)) fail("expected a Unicode character");
    return static_cast<int32_t>(c);
  }

  std::string_view text_;
  const std::string& where_;
  size_t at_ = 0;
  int depth_ = 0;
  std::vector<NamedRule> rules_;
  std::map<std::string, size_t> numbers_;
};

bool may_be_empty(const Expression& e, const std::vector<NamedRule>& rules) {
  const auto inner = [&](const Expression& part) { return may_be_empty(part, rules); };
  switch (e.kind) {
    case Expression::Kind::kSet:
      return false;
    case Expression::Kind::kAll:
      return std::ranges::all_of(e.parts, inner);
    case Expression::Kind::kAny:
      return std::ranges::any_of(e.parts, inner);
    case Expression::Kind::kRepeat:
      return e.least == 0 || inner(e.parts[0]);
    case Expression::Kind::kRule:
      return rules[e.rule].may_be_empty;
  }
  return false;
}

// Until nothing changes: a round for each rule at most.
void find_empty(std::vector<NamedRule>& rules, const Automaton& automaton) {
  for (bool changed = true; changed;) {
    automaton.check_time();
    changed = false;
    for (NamedRule& rule : rules) {
      if (rule.may_be_empty || !may_be_empty(*rule.body, rules)) continue;
      rule.may_be_empty = changed = true;
    }
  }
}

// The texts of one rule. Each of its places is two states, before and after its first byte; only the second may end.
class RuleBuilder {
 public:
  RuleBuilder(Automaton& automaton, const std::vector<NamedRule>& rules, const std::vector<int32_t>& numbers)
      : a_(automaton), rules_(rules), numbers_(numbers), edges_(automaton, CharacterEdges::Form::kPlain) {}

  void build(size_t rule) {
    const Place begin{a_.start(numbers_[rule]), kNowhere}, end{kNowhere, a_.add_state()};
    a_.end(end.after);
    connect(*rules_[rule].body, begin, end);
  }

 private:
  static constexpr int32_t kNowhere = -1;
  struct Place {
    int32_t before, after;  // kNowhere: no text leads there, or none that matters
  };

  // A place that is reached from `from`, without a byte if `empty`.
  Place place(const Place& from, bool empty) {
    return {empty && from.before != kNowhere ? a_.add_state() : kNowhere, a_.add_state()};
  }
  void skip(const Place& from, const Place& to) {
    if (from.before != kNowhere && to.before != kNowhere) a_.skip(from.before, to.before);
    if (from.after != kNowhere) a_.skip(from.after, to.after);
  }

  void connect(const Expression& e, const Place& from, const Place& to) {
    a_.check_time();
    switch (e.kind) {
      case Expression::Kind::kSet:
        for (const int32_t state : {from.before, from.after}) {
          if (state != kNowhere) edges_.add(e.set, state, to.after);
        }
        break;
      case Expression::Kind::kRule:
        for (const int32_t state : {from.before, from.after}) {
          if (state != kNowhere) a_.call(state, numbers_[e.rule], to.after);
        }
        if (rules_[e.rule].may_be_empty) skip(from, to);
        break;
      case Expression::Kind::kAny:
        for (const Expression& part : e.parts) connect(part, from, to);
        break;
      case Expression::Kind::kAll: {
        Place at = from;
        for (const Expression& part : e.parts) at = after(part, at);
        skip(at, to);
        break;
      }
      case Expression::Kind::kRepeat:
        repeat(e, from, to);
        break;
    }
  }

  Place after(const Expression& e, const Place& from) {
    const Place to = place(from, may_be_empty(e, rules_));
    connect(e, from, to);
    return to;
  }

  void repeat(const Expression& e, const Place& from, const Place& to) {
    const Expression& part = e.parts[0];
    Place at = from;
    for (int32_t i = 0; i < e.least; ++i) at = after(part, at);
    if (e.most == kUnlimited) {
      const Place loop = place(at, /*empty=*/true);
      skip(at, loop);
      connect(part, loop, loop);
      at = loop;
    }
    for (int32_t i = e.least; i < e.most; ++i) {
      skip(at, to);
      at = after(part, at);
    }
    skip(at, to);
  }

  Automaton& a_;
  const std::vector<NamedRule>& rules_;
  const std::vector<int32_t>& numbers_;
  CharacterEdges edges_;
};

}  // namespace

TextRule add_gbnf(Automaton& automaton, std::string_view text, const std::string& where) {
  if (text.size() > kMaxBytes) {
    throw Error(ErrorCode::kInput, where + ": expected at most " + std::to_string(kMaxBytes) + " bytes");
  }
  if (!is_valid_utf8(text)) throw Error(ErrorCode::kInput, where + ": not valid UTF-8");
  Reader reader(text, where);
  std::vector<NamedRule> rules = reader.read();
  const size_t root = reader.root();
  std::vector<int32_t> numbers;
  try {
    find_empty(rules, automaton);
    for (size_t i = 0; i < rules.size(); ++i) numbers.push_back(automaton.add_rule());
    for (size_t i = 0; i < rules.size(); ++i) RuleBuilder(automaton, rules, numbers).build(i);
  } catch (const Error& e) {
    throw Error(e.code(), where + ": " + e.what());
  }
  const TextRule out{.rule = numbers[root], .may_be_empty = rules[root].may_be_empty};
  if (!automaton.trim(out.rule) && !out.may_be_empty) throw Error(ErrorCode::kInput, where + ": no text can end");
  return out;
}

}  // namespace vlcache
