// Reads distributions over the vocabulary, and measures how far two of them are apart.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace vlcache {

// The index of the largest, the first of equals.
int32_t likeliest(std::span<const float> logits);
// Turns logits into log probabilities, in place.
void log_softmax(std::span<float> logits);
// Kullback-Leibler divergence of q from p, both log probabilities, in nats; never below 0.
double divergence(std::span<const float> p, std::span<const float> q);

// A distribution over the next token.
struct TokenDistribution {
  // Throws Error(kInput) for logits without a distribution: a NaN or an infinity among them.
  explicit TokenDistribution(std::span<const float> logits);

  std::vector<float> log_p;  // [vocab]
  int32_t likeliest = 0;     // by the logits: of two that differ, the log probabilities may round to one
};

// How far two ways of computing a text are apart, token by token.
struct TokenDivergences {
  // Adds a token: q's divergence from p.
  void add(const TokenDistribution& p, const TokenDistribution& q);

  std::vector<float> kl;   // each token's, in nats
  int64_t n_same_top = 0;  // tokens whose likeliest is the same under both distributions
};

// The figures that `llama-perplexity --kl-divergence` prints; every token counts alike. All 0 without tokens.
struct DivergenceFigures {
  int64_t n_tokens = 0;
  double mean = 0, median = 0, p999 = 0;  // in nats; p999: the 99.9 % quantile, by quantile() in statistics.h
  double same_top = 0;                    // share of the tokens
};
// The order of the tokens changes no bit of it.
DivergenceFigures figures(TokenDivergences divergences);

}  // namespace vlcache
