// Decode rules that depend on the position.
// streaming: a head stays at its size after the prompt; the oldest slot after the first `sinks` is evicted.
// periodic: each time `every` tokens have been generated, those of them that later ones attended to least are evicted,
// and `keep` of them stay; the prompt's slots stay. VL-Cache (arXiv:2410.23317) leaves this as future work.
#include <algorithm>
#include <cmath>

#include "policy/registry.h"

namespace vlcache {
namespace {

class StreamingRule final : public DecodeRule {
 public:
  explicit StreamingRule(int32_t n_sinks) : n_sinks_(n_sinks) {}
  void on_step(const StepInfo&, int32_t layer, int32_t head, PolicySlots& slots) const override {
    const std::span<const float> bias = slots.bias(layer, head);
    const auto n = static_cast<int32_t>(slots.tokens(layer, head).size());
    const int32_t n_sinks =
        std::clamp(slots.n_visible_at_prompt_end(layer, head) - 1, 0, n_sinks_);  // a head may keep none
    const int32_t first =
        std::max(n_slots_before(slots.places(layer, head), n_sinks), first_in_window(slots, layer, head));
    for (int32_t i = first; i < n && slots.n_visible(layer, head) > slots.n_visible_at_prompt_end(layer, head); ++i) {
      if (bias.empty() || std::isfinite(bias[static_cast<size_t>(i)])) slots.hide(layer, head, i);
    }
  }

 private:
  int32_t n_sinks_;
};

class Periodic final : public DecodeRule {
 public:
  Periodic(int32_t every, double keep) : every_(every), keep_(keep) {}

  bool wants_attention() const override { return true; }
  void on_attention(const DecodedAttention& decoded, std::span<float> values) const override {
    for (size_t i = 0; i < values.size(); ++i) values[i] += decoded.attention[i];
  }
  void on_step(const StepInfo& step, int32_t layer, int32_t head, PolicySlots& slots) const override {
    const int32_t n_generated = step.n_tokens - step.n_prompt;
    if (n_generated == 0 || n_generated % every_ != 0) return;
    const std::span<const int32_t> tokens = slots.tokens(layer, head);
    const auto first = static_cast<int32_t>(std::ranges::lower_bound(tokens, step.n_prompt) - tokens.begin());
    const int32_t room = slots.n_visible_at_prompt_end(layer, head) + slots_of(keep_, n_generated);
    const int32_t n_recent = slots_of(keep_ * kRecentShare, n_generated);
    hide_until(slots, layer, head, room, first, n_recent);
  }

 private:
  static constexpr double kRecentShare = 0.1;
  int32_t every_;
  double keep_;
};

}  // namespace

std::unique_ptr<const DecodeRule> make_streaming_rule(Parameters& p) {
  return std::make_unique<StreamingRule>(static_cast<int32_t>(p.integer("sinks", 4, 0)));
}
std::unique_ptr<const DecodeRule> make_periodic_rule(Parameters& p) {
  const auto every = static_cast<int32_t>(p.integer("every", 128, 1));
  return std::make_unique<Periodic>(every, p.number("keep", 0.1, 0, 1));
}

}  // namespace vlcache
