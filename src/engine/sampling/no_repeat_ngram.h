// add_ngram_ends finds the tokens that would repeat a sequence of n tokens.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace vlcache {

// Appends to `found` each token that would complete, after `text`, a sequence of n tokens that the text contains; n =
// 1: each token of the text. A token may be appended more than once. Time is linear in the text, whatever it repeats.
// Compared with transformers' NoRepeatNGramLogitsProcessor, to which the prompt belongs to the text as well.
void add_ngram_ends(std::span<const int32_t> text, int32_t n, std::vector<int32_t>& found);

}  // namespace vlcache
