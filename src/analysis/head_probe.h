// Which heads look back: RazorAttention's probe of random tokens that repeat.
#pragma once

#include <cstdint>
#include <functional>

#include "engine/engine.h"
#include "policy/head_scores.h"

namespace vlcache {

struct ProbeOptions {
  int32_t period = 0;  // random tokens; 0: 2,500, or as many as the model's context holds of
  int32_t repeats = 4;
  uint64_t seed = 1;
  std::function<void(int32_t n_done, int32_t n_total)> progress;  // tokens
  std::function<bool()> cancelled;                                // asked before every step
};

// Prefills the same random tokens `repeats` times over and looks at the last time: echo, the mean attention that a
// token pays to the same token one period before; induction, to the one behind that. Of a kv head, the best of its
// group. Costs a prefill with the last period's attention twice. Throws Error(kInput) unless the model's context holds
// the tokens. Source: arXiv:2407.15891.
HeadScores probe_heads(Engine& engine, const ProbeOptions& options);

}  // namespace vlcache
