// Finds the heads that look back, by RazorAttention's probe: random tokens that repeat.
#pragma once

#include <cstdint>
#include <functional>

#include "engine/engine.h"
#include "policy/head_scores.h"

namespace vlcache {

struct ProbeOptions {
  int32_t period = 0;  // random tokens; 0: 2,500, or as many as fit the model's context
  int32_t repeats = 4;
  uint64_t seed = 1;
  std::function<void(int32_t n_done, int32_t n_total)> progress;  // tokens
  std::function<bool()> cancelled;                                // polled before every step
};

// Prefills the same random tokens `repeats` times and observes the last repetition: echo, the mean attention of a token
// to the same token one period before; induction, to the token after that. Of a kv head, the best of its group. Costs a
// prefill with the last period's attention computed twice. Throws Error(kInput) unless the tokens fit the model's
// context. Source: arXiv:2407.15891.
HeadScores probe_heads(Engine& engine, const ProbeOptions& options);

}  // namespace vlcache
