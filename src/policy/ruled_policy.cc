// Handing a decoded token's attention to the rule.
#include "policy/ruled_policy.h"

namespace vlcache {

void RuledPolicy::on_scores(int32_t layer, const StepScores& scores, PolicySlots& slots) const {
  const int32_t n_kv_heads = slots.n_kv_heads(layer);
  const int64_t n_heads = scores.logits.rows(), group = rule_->joins_heads() ? n_heads : n_heads / n_kv_heads;
  for (int32_t head = 0; head < n_kv_heads; ++head) {
    const std::span<float> values = slots.plane(layer, head, 0);
    const int64_t first = rule_->joins_heads() ? 0 : head * group;
    rule_->on_attention({.layer = layer,
                         .head = head,
                         .n_generated = scores.n_generated,
                         .tokens = slots.tokens(layer, head),
                         .attention = mean_attention(scores, first, group, values.size())},
                        values);
  }
}

void RuledPolicy::on_step(const StepInfo& step, PolicySlots& slots) const {
  if (rule_ == nullptr || step.in_prompt) return;
  for (int32_t layer = 0; layer < slots.n_layers(); ++layer) {
    for (int32_t head = 0; head < slots.n_kv_heads(layer); ++head) rule_->on_step(step, layer, head, slots);
  }
}

}  // namespace vlcache
