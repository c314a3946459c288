// For tests: takes(), whether a text belongs to a rule.
#pragma once

#include <string_view>

#include "grammar/matcher.h"

namespace vlcache {

inline bool takes(const Automaton& automaton, int32_t rule, std::string_view text) {
  Matcher matcher(automaton);
  matcher.begin(rule);
  for (const char c : text) {
    if (!matcher.push(static_cast<uint8_t>(c))) return false;
    matcher.commit();
  }
  return matcher.may_end();
}

}  // namespace vlcache
