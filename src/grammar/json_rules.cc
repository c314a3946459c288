// RFC 8259 as states.
#include "grammar/json_rules.h"

#include <algorithm>
#include <array>
#include <map>

#include "base/error.h"

namespace vlcache {
namespace {

struct Bytes {
  uint8_t low, high;
};

void chain(Automaton& a, int32_t from, std::initializer_list<Bytes> ranges, int32_t to) {
  for (const Bytes* r = ranges.begin(); r != ranges.end(); ++r) {
    const int32_t next = r + 1 == ranges.end() ? to : a.add_state();
    a.bytes(from, r->low, r->high, next);
    from = next;
  }
}

// Characters of more than one byte (Unicode 15, table 3-7), by their first bytes.
constexpr Bytes kTail{0x80, 0xBF};
struct Characters {
  Bytes lead, second;
  int n_tails;  // number of bytes that follow
};
constexpr std::array<Characters, 8> kCharacters = {{{{0xC2, 0xDF}, kTail, 0},
                                                    {{0xE0, 0xE0}, {0xA0, 0xBF}, 1},
                                                    {{0xE1, 0xEC}, kTail, 1},
                                                    {{0xED, 0xED}, {0x80, 0x9F}, 1},
                                                    {{0xEE, 0xEF}, kTail, 1},
                                                    {{0xF0, 0xF0}, {0x90, 0xBF}, 2},
                                                    {{0xF1, 0xF3}, kTail, 2},
                                                    {{0xF4, 0xF4}, {0x80, 0x8F}, 2}}};
// One-byte characters that need no escape in a string.
constexpr std::array<Bytes, 3> kAscii = {{{0x20, 0x21}, {0x23, 0x5B}, {0x5D, 0x7F}}};

// The states after the first bytes of characters of more than one byte that lead to a state.
class LongCharacters {
 public:
  LongCharacters(Automaton& a, int32_t to) {
    for (size_t i = 0; i < kCharacters.size(); ++i) {
      const Characters& c = kCharacters[i];
      after_[i] = a.add_state();
      if (c.n_tails == 0) chain(a, after_[i], {c.second}, to);
      if (c.n_tails == 1) chain(a, after_[i], {c.second, kTail}, to);
      if (c.n_tails == 2) chain(a, after_[i], {c.second, kTail, kTail}, to);
    }
  }
  int32_t after(size_t i) const { return after_[i]; }  // a first byte of kCharacters[i]

 private:
  std::array<int32_t, kCharacters.size()> after_{};
};

// Accepts one hexadecimal digit.
void hex_digit(Automaton& a, int32_t from, int32_t to) {
  a.bytes(from, '0', '9', to);
  a.bytes(from, 'a', 'f', to);
  a.bytes(from, 'A', 'F', to);
}

int32_t hex_digits(Automaton& a, int32_t from, int n) {
  for (int i = 0; i < n; ++i) {
    const int32_t next = a.add_state();
    hex_digit(a, from, next);
    from = next;
  }
  return from;
}

// Accepts the rest of "\u": four digits, or a pair of surrogates.
void unicode_escape(Automaton& a, int32_t from, int32_t to) {
  const int32_t plain = a.add_state(), d = a.add_state(), high = a.add_state();
  a.bytes(from, '0', '9', plain);
  for (const char c : {'a', 'A'}) a.bytes(from, static_cast<uint8_t>(c), static_cast<uint8_t>(c + 2), plain);
  for (const char c : {'e', 'E'}) a.bytes(from, static_cast<uint8_t>(c), static_cast<uint8_t>(c + 1), plain);
  for (const uint8_t c : {'d', 'D'}) a.bytes(from, c, c, d);
  a.skip(hex_digits(a, plain, 3), to);
  const int32_t below = a.add_state();
  a.bytes(d, '0', '7', below);
  a.skip(hex_digits(a, below, 2), to);
  for (const Bytes b : {Bytes{'8', '9'}, Bytes{'a', 'b'}, Bytes{'A', 'B'}}) a.bytes(d, b.low, b.high, high);
  const int32_t low = a.text(hex_digits(a, high, 2), "\\u"), low_d = a.add_state(), low_rest = a.add_state();
  for (const uint8_t c : {'d', 'D'}) a.bytes(low, c, c, low_d);
  for (const Bytes b : {Bytes{'c', 'f'}, Bytes{'C', 'F'}}) a.bytes(low_d, b.low, b.high, low_rest);
  a.skip(hex_digits(a, low_rest, 2), to);
}

// A double has 17 significant digits at most, and these exponents whatever the digits before them are: 10^308 is not
// reached, and other values do not become 0.
constexpr int kSignificantDigits = 17, kLargestExponent = 307, kSmallestExponent = 307;

// 1 to n digits.
void digits(Automaton& a, int32_t from, int n, int32_t to) {
  for (int i = 0; i < n; ++i) {
    const int32_t next = a.add_state();
    a.bytes(from, '0', '9', next);
    a.skip(next, to);
    from = next;
  }
}

void integer(Automaton& a, int32_t from, int32_t to) {
  const int32_t unsigned_part = a.add_state(), first = a.add_state();
  a.skip(from, unsigned_part);
  a.bytes(from, '-', '-', unsigned_part);
  a.bytes(unsigned_part, '0', '0', to);
  a.bytes(unsigned_part, '1', '9', first);
  a.skip(first, to);
  digits(a, first, kWholeDigits - 1, to);
}

void number(Automaton& a, int32_t from, int32_t to) {
  const int32_t whole = a.add_state(), point = a.add_state(), with_fraction = a.add_state(), e = a.add_state(),
                signed_e = a.add_state();
  integer(a, from, whole);
  a.bytes(whole, '.', '.', point);
  digits(a, point, kFractionDigits, with_fraction);
  a.skip(whole, with_fraction);
  a.skip(with_fraction, to);
  a.bytes(with_fraction, 'e', 'e', e);
  a.bytes(with_fraction, 'E', 'E', e);
  a.bytes(e, '+', '+', signed_e);
  a.bytes(e, '-', '-', signed_e);
  a.skip(e, signed_e);
  digits(a, signed_e, 2, to);
  // Exponents of three digits, where the whole part has one.
  const int32_t first = a.add_state(), sign = a.text(from, "-");
  for (const int32_t at : {from, sign}) a.bytes(at, '0', '9', first);
  json_exponent(a, first, /*negative=*/false, 100, kLargestExponent, to);
  json_exponent(a, first, /*negative=*/true, 100, kSmallestExponent, to);
}

void character(Automaton& a, int32_t from, const LongCharacters& rest, int32_t to, Automaton::Guard guard) {
  for (const Bytes b : kAscii) a.bytes(from, b.low, b.high, to, guard);
  for (size_t i = 0; i < kCharacters.size(); ++i) {
    a.bytes(from, kCharacters[i].lead.low, kCharacters[i].lead.high, rest.after(i), guard);
  }
  const int32_t escape = a.add_state();
  a.bytes(from, '\\', '\\', escape, guard);
  for (const char c : std::string_view("\"\\/bfnrt"))
    a.bytes(escape, static_cast<uint8_t>(c), static_cast<uint8_t>(c), to);
  unicode_escape(a, a.text(escape, "u"), to);
}

// Elements between brackets: `element` adds the states of one element.
template <typename Element>
void list(Automaton& a, int32_t from, std::string_view brackets, int32_t to, const Element& element) {
  const int32_t first = a.text(from, brackets.substr(0, 1)), after = a.add_state();
  a.text(first, brackets.substr(1), to);
  a.text(after, brackets.substr(1), to);
  element(first, after);
  element(json_spaced(a, after, ','), after);
}

}  // namespace

void json_character(Automaton& a, int32_t from, int32_t to, Automaton::Guard guard) {
  character(a, from, LongCharacters(a, to), to, guard);
}

void json_long_character(Automaton& a, int32_t from, int32_t to) {
  const LongCharacters rest(a, to);
  for (size_t i = 0; i < kCharacters.size(); ++i) {
    a.bytes(from, kCharacters[i].lead.low, kCharacters[i].lead.high, rest.after(i));
  }
}

int32_t json_spaced(Automaton& a, int32_t from, char sign) {
  const int32_t after = a.text(from, std::string_view(&sign, 1)), spaced = a.text(after, " ");
  a.skip(after, spaced);
  return spaced;
}

void json_exponent(Automaton& a, int32_t from, bool negative, int least, int most, int32_t to) {
  if (least > most) return;
  const int32_t point = a.text(from, "."), e = a.add_state(), begin = a.add_state();
  digits(a, point, kSignificantDigits - 1, e);
  a.skip(from, e);
  for (const char* letter : {"e", "E"}) {
    const int32_t after = a.text(e, letter);
    a.text(after, negative ? "-" : "+", begin);
    if (!negative) a.skip(after, begin);
  }
  std::map<std::string, int32_t> states;
  for (int n = least; n <= most; ++n) {
    const std::string short_text = std::to_string(n);
    for (const std::string& text : {short_text, "0" + short_text}) {
      if (text.size() > 2 && text[0] == '0') continue;
      int32_t at = begin;
      for (size_t i = 1; i <= text.size(); ++i) {
        const auto [child, is_new] = states.try_emplace(text.substr(0, i), 0);
        if (is_new) child->second = a.text(at, text.substr(i - 1, 1));
        at = child->second;
      }
      a.skip(at, to);
    }
  }
}

void json_string_unlike(Automaton& a, int32_t from, const std::set<std::string>& known, int32_t to) {
  // A state for each beginning of a known string, in whole characters; a text that leaves them may continue freely.
  const int32_t free = a.add_state();
  const LongCharacters rest(a, free);
  character(a, free, rest, free, Automaton::Guard::kNone);
  a.text(free, "\"", to);
  std::set<std::string> beginnings{""};
  const auto is_inside = [](char c) { return (static_cast<uint8_t>(c) & 0xC0) == 0x80; };
  for (const std::string& name : known) {
    for (size_t n = 1; n <= name.size(); ++n) {
      if (n == name.size() || !is_inside(name[n])) beginnings.insert(name.substr(0, n));
    }
  }
  // Characters that are always escaped, where no known string has any.
  const auto is_escaped = [](char c) { return static_cast<uint8_t>(c) < 0x20 || c == '"' || c == '\\'; };
  const bool none_escaped =
      std::ranges::none_of(known, [&](const std::string& name) { return std::ranges::any_of(name, is_escaped); });
  const int32_t escape = a.add_state();
  for (const char c : std::string_view("\"\\bfnrt")) {
    a.bytes(escape, static_cast<uint8_t>(c), static_cast<uint8_t>(c), free);
  }
  std::map<std::string, int32_t> states;
  for (const std::string& b : beginnings) {
    states[b] = b.empty() ? a.text(from, "\"") : a.add_state();
    a.set_like(states[b], free);
  }
  for (const auto& entry : states) {
    const std::string& beginning = entry.first;
    const int32_t state = entry.second;
    std::array<bool, 256> taken{};
    for (auto at = states.upper_bound(beginning); at != states.end() && at->first.starts_with(beginning); ++at) {
      const std::string rest_of_it = at->first.substr(beginning.size());
      size_t n = 1;
      while (n < rest_of_it.size() && is_inside(rest_of_it[n])) ++n;
      const auto lead = static_cast<uint8_t>(rest_of_it[0]);
      if (n == rest_of_it.size() && lead >= 0x20 && lead != '"' && lead != '\\') a.text(state, rest_of_it, at->second);
      taken[lead] = true;
    }
    const auto untaken = [&](Bytes b, int32_t next) {
      for (int low = b.low; low <= b.high; ++low) {
        int high = low - 1;
        while (high < b.high && !taken[static_cast<size_t>(high + 1)]) ++high;
        if (high >= low) a.bytes(state, static_cast<uint8_t>(low), static_cast<uint8_t>(high), next);
        low = std::max(low, high);
      }
    };
    for (const Bytes b : kAscii) untaken(b, free);
    for (size_t i = 0; i < kCharacters.size(); ++i) untaken(kCharacters[i].lead, rest.after(i));
    if (none_escaped) a.bytes(state, '\\', '\\', escape);
    if (!known.contains(beginning)) a.text(state, "\"", to);
  }
}

void add_json_rules(Automaton& a) {
  CHECK(a.n_states() == 0);
  std::array<int32_t, kJsonRules> start{}, end{};
  for (size_t rule = 0; rule < kJsonRules; ++rule) {
    start[rule] = a.start(a.add_rule());
    end[rule] = a.add_state();
    a.end(end[rule]);
  }
  const int32_t inside = a.text(start[kJsonString], "\"");
  json_character(a, inside, inside);
  a.text(inside, "\"", end[kJsonString]);
  const int32_t counted = a.add_state(), n_before = a.n_states() - 1;
  json_character(a, counted, counted, Automaton::Guard::kCounts);
  a.bytes(counted, '"', '"', end[kJsonCountedString], Automaton::Guard::kCloses);
  a.text(start[kJsonCountedString], "\"", counted);
  for (int32_t s = n_before; s < a.n_states(); ++s) a.set_counted(s);
  a.set_counted(start[kJsonCountedString]);
  number(a, start[kJsonNumber], end[kJsonNumber]);
  integer(a, start[kJsonInteger], end[kJsonInteger]);
  for (const char* word : {"true", "false", "null"}) a.text(start[kJsonValue], word, end[kJsonValue]);
  for (const JsonRule rule : {kJsonString, kJsonNumber, kJsonObject, kJsonArray}) {
    a.call(start[kJsonValue], rule, end[kJsonValue]);
  }
  list(a, start[kJsonObject], "{}", end[kJsonObject], [&](int32_t from, int32_t to) {
    const int32_t after = a.add_state();
    a.call(from, kJsonString, after);
    a.call(json_spaced(a, after, ':'), kJsonValue, to);
  });
  list(a, start[kJsonArray], "[]", end[kJsonArray], [&](int32_t from, int32_t to) { a.call(from, kJsonValue, to); });
}

int32_t n_json_states() {
  static const int32_t n = [] {
    Automaton a;
    add_json_rules(a);
    return a.n_states();
  }();
  return n;
}

}  // namespace vlcache
