// Sampler draws the next token from logits: biases, penalties, temperature, top-k, top-p, min-p in transformers' order,
// seeded.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "base/function_ref.h"

namespace vlcache {

struct TokenBias {
  int32_t token = 0;
  float bias = 0.0f;  // added to the token's logit
};

struct SamplingParams {
  float temperature = 0.0f;         // 0: greedy
  int32_t top_k = 0;                // 0: all
  float top_p = 1.0f;               // keep the smallest set of most likely tokens with at least this mass
  float min_p = 0.0f;               // drop tokens less likely than min_p times the most likely
  float repetition_penalty = 1.0f;  // CTRL, arXiv:1909.05858: over prompt and generated tokens
  float presence_penalty = 0.0f;    // OpenAI: subtracted once for every generated token value ...
  float frequency_penalty = 0.0f;   // ... and once per time it was generated
  std::vector<TokenBias> biases;    // OpenAI's logit_bias; tokens of the vocabulary
  uint64_t seed = 0;
  int32_t n_logprobs = -1;  // alternatives to report per token; -1: no log probabilities at all

  // Throws Error(kInput) naming the value that is out of range.
  void validate() const;
};

struct TokenLogprob {
  int32_t token = 0;
  float logprob = 0.0f;  // natural log of softmax over the model's own logits, before biases, penalties and temperature
};

struct SampledToken {
  int32_t token = 0;
  float logprob = 0.0f;
  std::vector<TokenLogprob> top;  // n_logprobs most likely, best first; empty unless requested
};

class Sampler {
 public:
  Sampler(const SamplingParams& params, int64_t vocab);

  // Tokens of the prompt, once; they count for repetition_penalty only. Ids outside the vocabulary, as image tokens may
  // have, are ignored: they have no logit.
  void add_prompt(std::span<const int32_t> tokens);
  // Chooses from logits [vocab] (changed in place) and counts the choice. Greedy ties go to the smaller id, as argmax
  // does.
  SampledToken sample(std::span<float> logits) {
    return sample(logits, [](std::span<float>) {});
  }
  // `restrict` sets logits of forbidden tokens to -infinity, of all but one at most. Log probabilities are those
  // before.
  SampledToken sample(std::span<float> logits, FunctionRef<void(std::span<float>)> restrict);

 private:
  void apply_biases(std::span<float> logits) const;
  void apply_penalties(std::span<float> logits) const;
  int32_t draw(std::span<float> logits);

  SamplingParams params_;
  std::mt19937_64 random_;
  std::vector<uint8_t> seen_;       // in prompt or generated
  std::vector<int32_t> generated_;  // times generated
  std::vector<int32_t> touched_;    // distinct tokens with seen_ or generated_: penalties are computed for these alone
  std::vector<TokenLogprob> candidates_;
};

}  // namespace vlcache
