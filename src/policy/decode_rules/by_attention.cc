// Decode rules that keep a head at its size after the prompt, by the attention that slots receive.
// h2o: each step evicts the slot with the least attention so far, prompt included, but none of the recent half. Source:
// arXiv:2306.14048.
// tova: each step evicts the slot that the last token attends to least, the mean over all heads. Source:
// arXiv:2401.06104.
// scissorhands: when a head is full, the slots that the tokens since the last time overlooked most (attention below 1 /
// n) are evicted, all at once, until half the room is free; the last r stay. Source: arXiv:2305.17118.
// refresh: each time `every` tokens have been generated, the slots stay that those tokens attended to most, the mean
// over all heads, later tokens weighing more, up to `weight`; as many as after the prompt, the first `sinks` and the
// last tenth among them. Source: PyramidInfer, arXiv:2405.12532.
#include <algorithm>
#include <cmath>

#include "policy/registry.h"

namespace vlcache {
namespace {

class H2oRule final : public DecodeRule {
 public:
  explicit H2oRule(double recent) : recent_(recent) {}

  CaptureRequest needs(const PromptShape&) const override { return {.all_sums = true}; }
  void begin(const PartInputs& in, int32_t layer, int32_t head, std::span<float> values) const override {
    const float* sums = in.capture[static_cast<size_t>(layer)].all_sums.row<float>(head);
    std::copy_n(sums, values.size(), values.begin());
  }
  bool wants_attention() const override { return true; }
  void on_attention(const DecodedAttention& decoded, std::span<float> values) const override {
    for (size_t i = 0; i < values.size(); ++i) values[i] += decoded.attention[i];
  }
  void on_step(const StepInfo&, int32_t layer, int32_t head, PolicySlots& slots) const override {
    const int32_t room = slots.n_visible_at_prompt_end(layer, head);
    hide_until(slots, layer, head, room, 0, static_cast<int32_t>(recent_ * room));
  }

 private:
  double recent_;
};

class TovaRule final : public DecodeRule {
 public:
  bool wants_attention() const override { return true; }
  bool joins_heads() const override { return true; }
  void on_attention(const DecodedAttention& decoded, std::span<float> values) const override {
    std::ranges::copy(decoded.attention, values.begin());
  }
  void on_step(const StepInfo&, int32_t layer, int32_t head, PolicySlots& slots) const override {
    hide_until(slots, layer, head, slots.n_visible_at_prompt_end(layer, head), 0, /*n_recent=*/1);
  }
};

class ScissorhandsRule final : public DecodeRule {
 public:
  ScissorhandsRule(double drop, int32_t n_recent) : drop_(drop), n_recent_(n_recent) {}

  bool wants_attention() const override { return true; }
  // Values: minus the number of tokens that have overlooked the slot.
  void on_attention(const DecodedAttention& decoded, std::span<float> values) const override {
    const auto n_seen = std::ranges::count_if(decoded.attention, [](float a) { return a > 0; });
    const float level = kRounding / static_cast<float>(std::max<int64_t>(n_seen, 1));
    for (size_t i = 0; i < values.size(); ++i) values[i] -= decoded.attention[i] < level ? 1.0f : 0.0f;
  }
  void on_step(const StepInfo&, int32_t layer, int32_t head, PolicySlots& slots) const override {
    const int32_t room = slots.n_visible_at_prompt_end(layer, head);
    if (slots.n_visible(layer, head) <= room) return;
    const auto left = std::max(1, static_cast<int32_t>(room * (1 - drop_)));
    hide_until(slots, layer, head, left, 0, std::min(n_recent_, left / 2));
    std::ranges::fill(slots.plane(layer, head, 0), 0.0f);
  }

 private:
  // In a head with one visible slot, that slot has all the attention, up to rounding.
  static constexpr float kRounding = 1 - 1e-4f;
  double drop_;
  int32_t n_recent_;
};

class RefreshRule final : public DecodeRule {
 public:
  RefreshRule(int32_t every, double weight, int32_t n_sinks) : every_(every), weight_(weight), n_sinks_(n_sinks) {}

  bool wants_attention() const override { return true; }
  bool joins_heads() const override { return true; }
  void on_attention(const DecodedAttention& decoded, std::span<float> values) const override {
    const int32_t i = (decoded.n_generated - 1) % every_;
    const auto weight = static_cast<float>(1 + (weight_ - 1) * i / std::max(1, every_ - 1));
    for (size_t j = 0; j < values.size(); ++j) values[j] += weight * decoded.attention[j];
  }
  void on_step(const StepInfo& step, int32_t layer, int32_t head, PolicySlots& slots) const override {
    const int32_t n_generated = step.n_tokens - step.n_prompt;
    if (n_generated == 0 || n_generated % every_ != 0) return;
    const int32_t room = slots.n_visible_at_prompt_end(layer, head), n_recent = recent_slots(room);
    const int32_t n_sinks = n_slots_before(slots.places(layer, head), n_sinks_);
    hide_until(slots, layer, head, room, std::min(n_sinks, room - n_recent), n_recent);
    std::ranges::fill(slots.plane(layer, head, 0), 0.0f);
  }

 private:
  int32_t every_;
  double weight_;
  int32_t n_sinks_;
};

}  // namespace

std::unique_ptr<const DecodeRule> make_refresh_rule(Parameters& p) {
  const auto every = static_cast<int32_t>(p.integer("every", 32, 1));
  const double weight = p.number("weight", 1.2, 1, 1e6);
  return std::make_unique<RefreshRule>(every, weight, static_cast<int32_t>(p.integer("sinks", 4, 0)));
}
std::unique_ptr<const DecodeRule> make_h2o_rule(Parameters& p) {
  return std::make_unique<H2oRule>(p.number("recent", 0.5, 0, 1));
}
std::unique_ptr<const DecodeRule> make_tova_rule(Parameters&) { return std::make_unique<TovaRule>(); }
std::unique_ptr<const DecodeRule> make_scissorhands_rule(Parameters& p) {
  const double drop = p.number("drop", 0.5, 0, 1);
  return std::make_unique<ScissorhandsRule>(drop, static_cast<int32_t>(p.integer("r", 10, 1)));
}

}  // namespace vlcache
