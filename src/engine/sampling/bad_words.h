// add_bad_word_ends finds the tokens that would complete a forbidden word.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace vlcache {

// Appends to `found` the last token of each word, a list of tokens, whose other tokens the text ends with. Empty words
// are ignored. Compared with transformers' NoBadWordsLogitsProcessor, which ignores a word that is longer than the text
// even if its last token alone is missing.
void add_bad_word_ends(std::span<const std::vector<int32_t>> words, std::span<const int32_t> text,
                       std::vector<int32_t>& found);

}  // namespace vlcache
