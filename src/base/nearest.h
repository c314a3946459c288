// Finds the known word that a mistyped one was probably meant to be.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace vlcache {

// Levenshtein distance: the bytes to insert, delete or replace to turn a into b.
size_t edit_distance(std::string_view a, std::string_view b);

// " (did you mean 'snapkv'?)" where one of `known` is at most a third of its letters away from `word`, or consists of
// the same letters; "" where none is.
std::string did_you_mean(std::string_view word, std::span<const std::string> known);

}  // namespace vlcache
