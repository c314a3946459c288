// The rules of JSON that all grammars share, and the pieces they are made of.
//
// JSON in the style of models and json.dumps: at most one space after ':' and ',', and no other white space, so that no
// answer can degenerate into white space. A number must fit a double, with at most as many digits before
// the point as any 64-bit integer holds (kWholeDigits; more where a bound of the schema has more) and after it as the
// shortest text of a double has.
#pragma once

#include <set>
#include <string>

#include "grammar/automaton.h"

namespace vlcache {

// Numbers of the rules, the same in every automaton that begins with add_json_rules(): masks of their states are valid
// in all of them.
enum JsonRule : int32_t {
  kJsonString,
  kJsonNumber,
  kJsonInteger,
  kJsonValue,
  kJsonObject,
  kJsonArray,
  kJsonCountedString,  // of as many characters as the call's Count says
  kJsonRules
};

inline constexpr int kWholeDigits = 18, kFractionDigits = 21;

// The automaton must be empty.
void add_json_rules(Automaton& automaton);
int32_t n_json_states();

// One character of a string, as it is (UTF-8, no surrogates, no overlong forms) or as an escape (surrogates as pairs).
// The guard is that of its first byte.
void json_character(Automaton& automaton, int32_t from, int32_t to, Automaton::Guard guard = Automaton::Guard::kNone);
// One character beyond ASCII.
void json_long_character(Automaton& automaton, int32_t from, int32_t to);
// Accepts `sign` (':' or ',') and an optional space; returns the state after them.
int32_t json_spaced(Automaton& automaton, int32_t from, char sign);
// A string, quotes included, that is none of `known` (given unescaped).
void json_string_unlike(Automaton& automaton, int32_t from, const std::set<std::string>& known, int32_t to);
// The text after the first digit of a number below 10 times a power of 10: its fraction, an exponent whose absolute
// value is one of these (0 <= least <= most), and the sign. No states if least > most.
void json_exponent(Automaton& automaton, int32_t from, bool negative, int least, int most, int32_t to);

}  // namespace vlcache
