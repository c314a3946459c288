// The rules of JSON that all grammars share, and the pieces they are made of.
//
// JSON in the style of models and json.dumps: at most one space after ':' and ',', and no other white space, so that no
// answer can degenerate into white space. Numbers have at most 15 digits before and after the point and an exponent of
// at most two: every reader accepts them and represents them exactly or nearly so.
#pragma once

#include <set>
#include <string>

#include "grammar/automaton.h"

namespace vlcache {

// Numbers of the rules, the same in every automaton that begins with add_json_rules(): masks of their states are valid
// in all of them.
enum JsonRule : int32_t { kJsonString, kJsonNumber, kJsonInteger, kJsonValue, kJsonObject, kJsonArray, kJsonRules };

// The automaton must be empty.
void add_json_rules(Automaton& automaton);
int32_t n_json_states();

// One character of a string, as it is (UTF-8, no surrogates, no overlong forms) or, if `escaped`, as an escape
// (surrogates as pairs).
void json_character(Automaton& automaton, int32_t from, int32_t to, bool escaped = true);
// Accepts `sign` (':' or ',') and an optional space; returns the state after them.
int32_t json_spaced(Automaton& automaton, int32_t from, char sign);
// A string, quotes included, that is none of `known` (given unescaped).
void json_string_unlike(Automaton& automaton, int32_t from, const std::set<std::string>& known, int32_t to);

}  // namespace vlcache
