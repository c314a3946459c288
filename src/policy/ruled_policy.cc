#include "policy/ruled_policy.h"

#include <algorithm>

namespace vlcache {
namespace {

// Index of a slot's token in the sequence; a merged slot counts as its first source.
size_t place_of(int32_t token) { return static_cast<size_t>(token < 0 ? -1 - token : token); }

// Sums over the kv heads of a layer, by token: heads of a layer may hold different tokens, and different numbers of
// them. Uses scores.scratch after the part that mean_attention uses.
class AttentionByToken {
 public:
  AttentionByToken(const StepScores& scores, int32_t layer, const PolicySlots& slots) {
    constexpr size_t kRoomToGrow = 1024;  // floats: makes steps that allocate rare
    size_t n_places = 0;
    for (int32_t head = 0; head < slots.n_kv_heads(layer); ++head) {
      const std::span<const int32_t> tokens = slots.tokens(layer, head);
      if (!tokens.empty()) n_places = std::max(n_places, place_of(tokens.back()) + 1);
    }
    const auto n_slots = static_cast<size_t>(scores.logits.row_size());
    if (scores.scratch.size() < n_slots + n_places) scores.scratch.resize(n_slots + n_places + kRoomToGrow);
    sums_ = std::span(scores.scratch).subspan(n_slots, n_places);
    std::ranges::fill(sums_, 0.0f);
  }
  void add(std::span<const int32_t> tokens, std::span<const float> attention) {
    for (size_t i = 0; i < tokens.size(); ++i) sums_[place_of(tokens[i])] += attention[i];
  }
  void mean(std::span<const int32_t> tokens, float n_heads, std::span<float> attention) const {
    for (size_t i = 0; i < tokens.size(); ++i) attention[i] = sums_[place_of(tokens[i])] / n_heads;
  }

 private:
  std::span<float> sums_;
};

}  // namespace

void RuledPolicy::on_scores(int32_t layer, const StepScores& scores, PolicySlots& slots) const {
  const int32_t n_kv_heads = slots.n_kv_heads(layer);
  const int64_t group = scores.logits.rows() / n_kv_heads;
  const auto mean_of = [&](int32_t head) {
    return mean_attention(scores, head * group, group, slots.tokens(layer, head).size());
  };
  const auto tell = [&](int32_t head, std::span<float> attention) {
    rule_->on_attention({.layer = layer,
                         .head = head,
                         .n_generated = scores.n_generated,
                         .tokens = slots.tokens(layer, head),
                         .attention = attention},
                        slots.plane(layer, head, 0));
  };
  if (!rule_->joins_heads()) {
    for (int32_t head = 0; head < n_kv_heads; ++head) tell(head, mean_of(head));
    return;
  }
  AttentionByToken all(scores, layer, slots);
  for (int32_t head = 0; head < n_kv_heads; ++head) all.add(slots.tokens(layer, head), mean_of(head));
  for (int32_t head = 0; head < n_kv_heads; ++head) {
    const std::span<const int32_t> tokens = slots.tokens(layer, head);
    const std::span<float> attention = std::span(scores.scratch).first(tokens.size());
    all.mean(tokens, static_cast<float>(n_kv_heads), attention);
    tell(head, attention);
  }
}

void RuledPolicy::on_step(const StepInfo& step, PolicySlots& slots) const {
  if (rule_ == nullptr || step.in_prompt) return;
  for (int32_t layer = 0; layer < slots.n_layers(); ++layer) {
    for (int32_t head = 0; head < slots.n_kv_heads(layer); ++head) rule_->on_step(step, layer, head, slots);
  }
}

}  // namespace vlcache
