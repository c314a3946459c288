// String sets: the JSON strings that match expressions, do not match others, and have a length within bounds.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "grammar/automaton.h"
#include "grammar/string_pattern.h"

namespace vlcache {

struct StringSet {
  std::vector<StringPattern> all, none;  // that match, and that do not
  std::set<std::string> without;         // these texts are left out
  int64_t least = 0, most = -1;          // characters; most -1: unlimited

  bool any() const { return all.empty() && none.empty() && without.empty() && least == 0 && most < 0; }
};

// Connects two states by the strings of a set, quotes included, each character in the form that json.dumps writes. In
// an automaton that begins with add_json_rules(). False: the set is empty. Throws Error(kUnsupported) if the states
// would be too many.
bool strings_of(Automaton& automaton, const StringSet& set, int32_t from, int32_t to);

// Connects two states by the texts that match an expression from their beginning to their end, without quotes and
// escapes; an empty text is left out, and the result says whether it matches. nullopt: no text matches. Throws as
// strings_of does.
std::optional<bool> plain_texts_of(Automaton& automaton, const StringPattern& pattern, int32_t from, int32_t to);

}  // namespace vlcache
