// Handing a layer's attention to a policy.
#include "engine/policy_hooks.h"

namespace vlcache {

PolicyHooks::PolicyHooks(Backend& backend, const Policy& policy, const PromptShape& prompt, CacheSlots& slots)
    : policy_(policy), slots_(slots), scored_(static_cast<size_t>(slots.n_layers())) {
  capture_.request = policy.needs(prompt);
  if (capture_.request.any()) {
    capture_hooks_ = std::make_unique<CaptureHooks>(backend, slots.n_layers(), prompt.n_tokens, capture_);
  }
}

bool PolicyHooks::wants_scores(int, int32_t) const { return !in_prompt_ && policy_.wants_scores(); }

bool PolicyHooks::after_attention(int layer, const Observed& observed, std::vector<int32_t>& keep) {
  if (capture_hooks_ != nullptr) return capture_hooks_->after_attention(layer, observed, keep);
  if (!observed.scores.empty() && !observed.scores[0].empty()) add_scores(layer, observed);
  return false;
}

void PolicyHooks::end_prompt() {
  in_prompt_ = false;
  capture_hooks_.reset();
  capture_.layers.clear();
}

void PolicyHooks::add_scores(int layer, const Observed& observed) {
  Scored& scored = scored_[static_cast<size_t>(layer)];
  const int32_t n_planes = policy_.n_planes(), n_heads = slots_.n_kv_heads(layer);
  const bool again = scored.token == observed.tokens[0];
  if (!again) {
    policy_.on_scores(layer, {.logits = observed.scores[0], .lse = observed.lse.view({observed.lse.numel()})}, slots_);
  }
  scored.token = observed.tokens[0];
  scored.own.resize(static_cast<size_t>(n_heads * n_planes));
  float* own = scored.own.data();
  for (int32_t head = 0; head < n_heads; ++head) {
    for (int32_t i = 0; i < n_planes; ++i, ++own) {
      float& value = slots_.plane(layer, head, i).back();
      (again ? value : *own) = again ? *own : value;
    }
  }
}

}  // namespace vlcache
