#include "engine/sampling/bad_words.h"

#include <algorithm>

namespace vlcache {

void add_bad_word_ends(std::span<const std::vector<int32_t>> words, std::span<const int32_t> text,
                       std::vector<int32_t>& found) {
  for (const std::vector<int32_t>& word : words) {
    if (word.empty() || word.size() - 1 > text.size()) continue;
    const std::span<const int32_t> before = std::span(word).first(word.size() - 1);
    if (std::ranges::equal(before, text.last(before.size()))) found.push_back(word.back());
  }
}

}  // namespace vlcache
