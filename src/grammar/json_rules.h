// Rules of JSON that all grammars share, and the pieces they are made of.
//
// JSON as models write it and json.dumps does: a space or none behind ':' and ',', and no other white space, so that no
// answer can drift into it. Numbers have at most 15 digits before the point and behind it and two of exponent: every
// reader has them exactly or nearly so, and none refuses them.
#pragma once

#include <set>
#include <string>

#include "grammar/automaton.h"

namespace vlcache {

// Numbers of the rules, the same in every automaton that begins with add_json_rules(): what is known of their states
// holds in all of them.
enum JsonRule : int32_t { kJsonString, kJsonNumber, kJsonInteger, kJsonValue, kJsonObject, kJsonArray, kJsonRules };

// Only to an empty automaton.
void add_json_rules(Automaton& automaton);
int32_t n_json_states();

// One character of a string, by itself (UTF-8, no surrogates, nothing overlong) or, if they may be, escaped (surrogates
// as pairs).
void json_character(Automaton& automaton, int32_t from, int32_t to, bool escaped = true);
// `sign` (':' or ',') and a space or none; returns what follows.
int32_t json_spaced(Automaton& automaton, int32_t from, char sign);
// A string, quotes included, that is none of these (as they are, not escaped).
void json_string_unlike(Automaton& automaton, int32_t from, const std::set<std::string>& known, int32_t to);

}  // namespace vlcache
