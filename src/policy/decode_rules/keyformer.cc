// keyformer: attention under Gumbel noise, so that slots that are weak now have a chance, at a temperature that rises
// from 1 to 2 over the answer to make up for evicted tokens. A scorer (temperature 1, over the whole prompt) and a
// decode rule. Source: arXiv:2403.09054; noise is drawn once per (layer, kv head, token).
#include <algorithm>
#include <cmath>

#include "policy/registry.h"

namespace vlcache {
namespace {

class Keyformer final : public TokenScorer {
 public:
  explicit Keyformer(uint64_t seed) : seed_(seed) {}
  CaptureRequest needs(const PromptShape&) const override { return {.all_sums = true, .gumbel_seed = seed_}; }
  void score_head(const PartInputs& in, int32_t layer, int32_t head, std::span<float> scores) const override {
    std::copy_n(in.capture[static_cast<size_t>(layer)].all_sums.row<float>(head), scores.size(), scores.begin());
  }

 private:
  uint64_t seed_;
};

class KeyformerRule final : public DecodeRule {
 public:
  KeyformerRule(uint64_t seed, int32_t n_steps, double recent) : seed_(seed), n_steps_(n_steps), recent_(recent) {}

  CaptureRequest needs(const PromptShape&) const override { return {.all_sums = true, .gumbel_seed = seed_}; }
  void begin(const PartInputs& in, int32_t layer, int32_t head, std::span<float> values) const override {
    std::copy_n(in.capture[static_cast<size_t>(layer)].all_sums.row<float>(head), values.size(), values.begin());
  }
  bool wants_attention() const override { return true; }
  // softmax((x + noise) / temperature): the logits x are ln A up to a constant.
  void on_attention(const DecodedAttention& decoded, std::span<float> values) const override {
    const float temperature =
        1 + std::min(1.0f, static_cast<float>(decoded.n_generated) / static_cast<float>(n_steps_));
    const std::span<float> weights = decoded.attention;
    float sum = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      if (weights[i] <= 0) continue;
      const float noise = gumbel_noise(seed_, decoded.layer, decoded.head, decoded.tokens[i]);
      weights[i] = std::exp((std::log(weights[i]) + noise) / temperature);
      sum += weights[i];
    }
    for (size_t i = 0; i < values.size(); ++i) values[i] += weights[i] / std::max(sum, 1e-30f);
  }
  void on_step(const StepInfo&, int32_t layer, int32_t head, PolicySlots& slots) const override {
    const int32_t room = slots.n_visible_at_prompt_end(layer, head);
    hide_until(slots, layer, head, room, 0, static_cast<int32_t>(recent_ * room));
  }

 private:
  uint64_t seed_;
  int32_t n_steps_;
  double recent_;
};

}  // namespace

std::unique_ptr<const TokenScorer> make_keyformer(Parameters& p) {
  return std::make_unique<Keyformer>(static_cast<uint64_t>(p.integer("seed", 1, 1)));
}
std::unique_ptr<const DecodeRule> make_keyformer_rule(Parameters& p) {
  const auto seed = static_cast<uint64_t>(p.integer("seed", 1, 1));
  const auto n_steps = static_cast<int32_t>(p.integer("steps", 256, 1));
  return std::make_unique<KeyformerRule>(seed, n_steps, p.number("recent", 0.3, 0, 1));
}

}  // namespace vlcache
