// The known word that a mistyped one was probably meant to be.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace vlcache {

// ", did you mean 'snapkv'?" where one of `known` is at most a third of its letters away from `word` (Levenshtein);
// "" where none is.
std::string did_you_mean(std::string_view word, std::span<const std::string> known);

}  // namespace vlcache
