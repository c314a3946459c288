#include "engine/hooks/policy_hooks.h"

#include <algorithm>

#include "base/clock.h"

namespace vlcache {

PolicyHooks::PolicyHooks(Backend& backend, const Policy& policy, const PromptShape& prompt, CacheSlots& slots)
    : policy_(policy), slots_(slots), n_prompt_(prompt.n_tokens), scored_(static_cast<size_t>(slots.n_layers())) {
  for (CaptureRequest& request : policy.needs(prompt))
    captures_.push_back({.request = std::move(request), .layers = {}});
  capture_hooks_.reserve(captures_.size());
  for (Capture& capture : captures_) {
    capture_pointers_.push_back(&capture);
    capture_hooks_.emplace_back(backend, slots.n_layers(), prompt.n_tokens, capture);
  }
}

bool PolicyHooks::wants_scores(int, int32_t) const { return !in_prompt_ && policy_.wants_scores(); }

bool PolicyHooks::after_attention(int layer, const Observed& observed, std::vector<int32_t>& keep) {
  if (!capture_hooks_.empty()) {
    const auto begin = Clock::now();
    for (CaptureHooks& hooks : capture_hooks_) hooks.after_attention(layer, observed, keep);  // they only capture
    if (!looking_ahead_) watch_ms_ += ms_since(begin);
  }
  if (!observed.scores.empty() && !observed.scores[0].empty()) add_scores(layer, observed);
  return false;
}

void PolicyHooks::end_prompt() {
  in_prompt_ = false;
  capture_hooks_.clear();
  capture_pointers_.clear();
  captures_.clear();
}

void PolicyHooks::begin(const Lookahead& lookahead) {
  looking_ahead_ = true;
  for (CaptureHooks& hooks : capture_hooks_) hooks.begin(lookahead);
}

bool PolicyHooks::needs_all_rows() const {
  return std::ranges::any_of(captures_, [](const Capture& c) { return c.request.needs_all_rows(); });
}

bool PolicyHooks::needs_whole_prompt() const {
  return std::ranges::any_of(captures_, [](const Capture& c) { return c.request.needs_whole_prompt(); });
}

void PolicyHooks::add_scores(int layer, const Observed& observed) {
  Scored& scored = scored_[static_cast<size_t>(layer)];
  const int32_t n_planes = policy_.n_planes(), n_heads = slots_.n_kv_heads(layer);
  const bool again = scored.token == observed.tokens[0];
  if (!again) {
    policy_.on_scores(layer,
                      {.logits = observed.scores[0],
                       .lse = observed.lse.view({observed.lse.numel()}),
                       .n_generated = observed.tokens[0] - n_prompt_ + 1,
                       .scratch = scratch_},
                      slots_);
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
