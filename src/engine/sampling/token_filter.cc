#include "engine/sampling/token_filter.h"

#include <algorithm>
#include <limits>

#include "engine/sampling/bad_words.h"
#include "engine/sampling/no_repeat_ngram.h"

namespace vlcache {

bool TokenRules::any() const {
  return !suppressed.empty() || !suppressed_first.empty() || !bad_words.empty() || no_repeat_ngram > 0;
}

TokenFilter::TokenFilter(TokenRules rules, std::span<const int32_t> ends) : rules_(std::move(rules)) {
  std::erase_if(rules_.bad_words, [&](const std::vector<int32_t>& word) {
    return word.size() == 1 && std::ranges::find(ends, word[0]) != ends.end();
  });
}

void TokenFilter::take(int32_t token) {
  text_.push_back(token);
  at_first_ = false;
}

void TokenFilter::restrict_logits(std::span<float> logits) {
  constexpr float kNever = -std::numeric_limits<float>::infinity();
  forbidden_ = rules_.suppressed;
  if (at_first_) forbidden_.insert(forbidden_.end(), rules_.suppressed_first.begin(), rules_.suppressed_first.end());
  add_bad_word_ends(rules_.bad_words, text_, forbidden_);
  if (rules_.no_repeat_ngram > 0) add_ngram_ends(text_, rules_.no_repeat_ngram, forbidden_);
  changed_.clear();
  for (const int32_t token : forbidden_) {
    const auto i = static_cast<size_t>(token);
    if (token < 0 || i >= logits.size() || logits[i] == kNever) continue;
    changed_.emplace_back(i, logits[i]);
    logits[i] = kNever;
  }
  if (changed_.empty() || std::ranges::any_of(logits, [](float x) { return x != kNever; })) return;
  for (const auto& [i, logit] : changed_) logits[i] = logit;
}

}  // namespace vlcache
