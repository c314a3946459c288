#include "analysis/forks.h"

#include <algorithm>

#include "base/numeric/divergence.h"
#include "engine/scheduler/scheduler.h"

namespace vlcache {

bool acts_after_prompt(const Policy& policy) { return policy.computes_as_full() && policy.capacity() == 0; }

bool goes_on_from_forks(const Policy& policy) {
  return policy.keeps_kv() && policy.vision_layers().empty() && policy.pattern() == AttentionPattern{} &&
         policy.capacity() == 0 && policy.acts_after_tokens() == 0;
}

void plan_beside(const Policy& policy, const PlanInputs& in, KeepPlan& plan) {
  std::vector<const Capture*> captures;
  for (const CaptureRequest& request : policy.needs(in.prompt)) captures.push_back(&answering(in.captures, request));
  policy.plan({.slots = in.slots, .tokens = in.tokens, .prompt = in.prompt, .captures = captures, .isa = in.isa}, plan);
}

std::vector<float> last_logits(Engine& engine, Sequence& sequence, Prompt prompt) {
  std::vector<float> last;
  Request request;
  request.prompt = std::move(prompt);
  request.sequence = &sequence;
  request.options.max_tokens = 1;
  request.callbacks.choose = [&](std::span<float> logits) {
    last.assign(logits.begin(), logits.end());
    return likeliest(logits);
  };
  generate(engine, std::move(request));
  return last;
}

std::vector<int32_t> greedy(Engine& engine, Sequence& sequence, std::span<const float> logits, int32_t max_tokens,
                            std::span<const int32_t> stops, LayerHooks* hooks) {
  std::vector<int32_t> tokens{likeliest(logits)};
  std::vector<TokenRun> runs;
  while (static_cast<int32_t>(tokens.size()) < max_tokens && std::ranges::find(stops, tokens.back()) == stops.end()) {
    sequence.add_token(tokens.back());
    sequence.next_runs(1, runs);
    StepItem item;
    item.sequence = &sequence;
    item.runs = runs;
    item.hooks = hooks;
    const Tensor next = engine.stepper().step({&item, 1})[0];
    sequence.apply_policy();
    tokens.push_back(likeliest({next.as<float>(), static_cast<size_t>(next.numel())}));
  }
  return tokens;
}

SlotScores empty_scores(const PolicySlots& slots) {
  SlotScores scores(static_cast<size_t>(slots.n_layers()));
  for (int32_t layer = 0; layer < slots.n_layers(); ++layer) {
    for (int32_t head = 0; head < slots.n_kv_heads(layer); ++head) {
      scores[static_cast<size_t>(layer)].emplace_back(slots.tokens(layer, head).size(), 0.0f);
    }
  }
  return scores;
}

}  // namespace vlcache
