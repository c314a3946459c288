// The decimal texts of the integers between two bounds.
#pragma once

#include <cstdint>

#include "grammar/automaton.h"

namespace vlcache {

constexpr int64_t kMaxRangedInteger = 1'000'000'000'000'000;  // as long as other numbers are, and exact in doubles

// low <= high, both within +- kMaxRangedInteger. No leading zeros; zero has no sign.
void integers_between(Automaton& automaton, int64_t low, int64_t high, int32_t from, int32_t to);

}  // namespace vlcache
