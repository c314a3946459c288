// TokenFilter forbids tokens before one is drawn: suppressed tokens, ends of bad words, repeated sequences.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace vlcache {

struct TokenRules {
  std::vector<int32_t> suppressed, suppressed_first;  // never drawn; never drawn as the answer's first token
  std::vector<std::vector<int32_t>> bad_words;        // never completed, each a list of tokens
  int32_t no_repeat_ngram = 0;                        // no sequence of so many tokens appears twice; 0: off

  bool any() const;
};

class TokenFilter {
 public:
  // A bad word that is one of the tokens that end the generation is left out, as in transformers.
  TokenFilter(TokenRules rules, std::span<const int32_t> ends);

  // Tokens of the prompt, once.
  void add_prompt(std::span<const int32_t> tokens) { text_.insert(text_.end(), tokens.begin(), tokens.end()); }
  // The token that was drawn.
  void take(int32_t token);
  // Sets logits [vocab] of forbidden tokens to -infinity. Where that would leave no token, as in a grammar that allows
  // nothing else, the rules are lifted for this token. Ids outside the vocabulary are ignored.
  void restrict_logits(std::span<float> logits);

 private:
  TokenRules rules_;
  std::vector<int32_t> text_;  // prompt and answer
  bool at_first_ = true;
  std::vector<int32_t> forbidden_;
  std::vector<std::pair<size_t, float>> changed_;  // logits as they were
};

}  // namespace vlcache
