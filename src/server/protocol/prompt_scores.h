// PromptScores: the log probabilities of a prompt's tokens, for clients that compare texts (echo, prompt_logprobs).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/tensor.h"
#include "engine/request.h"

namespace vlcache {

class PromptScores {
 public:
  // `n_top`: alternatives of each token.
  PromptScores(std::vector<int32_t> tokens, int32_t n_top) : tokens_(std::move(tokens)), n_top_(n_top) {}

  // Logits [n, vocab] f32 of the tokens first, first + 1, ...: each row judges the token after it. Called by the
  // inference thread, before the answer is read.
  void add(int32_t first, const Tensor& logits);

  // Each token with its log probability and rank among all; of the first, which nothing precedes, and of others that
  // are not scored, the id alone.
  struct Score {
    GeneratedToken token;
    int32_t rank = 0;  // 1: the likeliest; 0: not scored
  };
  std::vector<Score> scores() const;

 private:
  std::vector<int32_t> tokens_;
  int32_t n_top_;
  std::vector<Score> scores_;  // as far as they are known, from the second token on
};

}  // namespace vlcache
