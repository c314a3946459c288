// For tests: whether a text belongs to a rule, and walks to its end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
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

// Consumes bytes that may follow, chosen by `choices`. False: a text neither continues nor ends.
inline bool never_stuck(const Automaton& automaton, int32_t rule, std::span<const uint8_t> choices) {
  Matcher matcher(automaton);
  matcher.begin(rule);
  for (size_t i = 0; i < 64; ++i) {
    int first = choices[i % choices.size()];
    int byte = 0;
    while (byte < 256 && !matcher.push(static_cast<uint8_t>((first + byte) % 256))) ++byte;
    if (byte == 256) return matcher.may_end();
    matcher.commit();
  }
  return true;
}

}  // namespace vlcache
