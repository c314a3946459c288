// fastgen: each kv head keeps slots by the cheapest of five rules that recovers a share t of its attention over the
// prompt: special tokens; also punctuation; also the slots with the most attention; also a local window; everything.
// While decoding its rule applies to every new token. Source: arXiv:2310.01801. The recovered share is the queries'
// mean attention to kept slots before them, as in AnswerDotAI/cold-compress (the authors publish no code); the window
// is a share of the prompt, frequent slots are one of all tokens so far.
#include <algorithm>
#include <cmath>

#include "policy/registry.h"

namespace vlcache {
namespace {

enum Rule : uint8_t { kSpecial = 1, kPunctuation, kFrequent, kLocal, kFull };  // cheapest first; 0: not chosen yet

bool keeps_token(Rule rule, std::span<const TokenInfo> tokens, int32_t token) {
  if (token < 0 || tokens[static_cast<size_t>(token)].meta.modality == Modality::kVision) return false;
  const TokenClass what = tokens[static_cast<size_t>(token)].token_class;
  return what == TokenClass::kSpecial || (what == TokenClass::kPunctuation && rule >= kPunctuation);
}

class FastGen final : public Policy {
 public:
  FastGen(std::string name, double recovery, double frequent, double local)
      : name_(std::move(name)), recovery_(recovery), frequent_(frequent), local_(local) {}

  std::string name() const override { return name_; }
  std::vector<CaptureRequest> needs(const PromptShape& prompt) const override {
    return {{.all_sums = true, .band = slots_of(local_, prompt.n_tokens)}};
  }
  int32_t n_planes() const override { return 2; }  // attention so far; the head's rule, in every slot
  bool wants_scores() const override { return true; }
  bool has_rule() const override { return true; }

  bool plan(const PlanInputs& in, KeepPlan& plan) const override {
    plan.layers.resize(static_cast<size_t>(in.slots.n_layers()));
    for (int32_t layer = 0; layer < in.slots.n_layers(); ++layer) {
      const LayerCapture& seen = in.captures[0]->layers[static_cast<size_t>(layer)];
      for (int32_t head = 0; head < in.slots.n_kv_heads(layer); ++head) {
        plan.layers[static_cast<size_t>(layer)].push_back(plan_head(in, seen, layer, head));
      }
    }
    return true;
  }

  void on_scores(int32_t layer, const StepScores& scores, PolicySlots& slots) const override {
    const int64_t group = scores.logits.rows() / slots.n_kv_heads(layer);
    for (int32_t head = 0; head < slots.n_kv_heads(layer); ++head) {
      const std::span<float> sums = slots.plane(layer, head, 0);
      const std::span<const float> attention = mean_attention(scores, head * group, group, sums.size());
      for (size_t i = 0; i < sums.size(); ++i) sums[i] += attention[i];
    }
  }

  void on_step(const StepInfo& step, PolicySlots& slots) const override {
    for (int32_t layer = 0; layer < slots.n_layers(); ++layer) {
      for (int32_t head = 0; head < slots.n_kv_heads(layer); ++head) {
        const Rule rule = hand_on(step, layer, head, slots);
        if (!step.in_prompt && rule != 0 && rule != kFull) hide_others(step, rule, layer, head, slots);
      }
    }
  }

 private:
  KeepPlan::Head plan_head(const PlanInputs& in, const LayerCapture& seen, int32_t layer, int32_t head) const {
    const std::vector<int32_t> lasting = lasting_slots(in.slots, layer, head);
    const std::span<const int32_t> tokens = in.slots.tokens(layer, head);
    const float *sums = seen.all_sums.row<float>(head), *band = seen.band_sums.row<float>(head);
    const int32_t n = in.prompt.n_tokens;
    std::vector<float> scores(tokens.size(), -INFINITY);
    double total = 0;
    for (const int32_t i : lasting) total += scores[static_cast<size_t>(i)] = sums[i];
    std::vector<bool> kept(tokens.size(), false);
    Rule rule = kSpecial;
    for (; rule < kFull; rule = static_cast<Rule>(rule + 1)) {
      if (rule == kFrequent) {
        for (const int32_t i : select_slots(scores, slots_of(frequent_, n), {})) kept[static_cast<size_t>(i)] = true;
      }
      double lost = 0;
      for (const int32_t slot : lasting) {
        const auto i = static_cast<size_t>(slot);
        kept[i] = kept[i] || keeps_token(rule, in.tokens, tokens[i]);
        if (!kept[i]) lost += rule == kLocal ? std::max(0.0f, sums[i] - band[i]) : sums[i];
      }
      if (recovery_ < 1 && lost <= (1 - recovery_) * total) break;
    }
    const int64_t first_local = rule == kLocal ? n - slots_of(local_, n) : n;
    KeepPlan::Head plan;
    for (const int32_t i : lasting) {
      if (rule == kFull || kept[static_cast<size_t>(i)] || i >= first_local) plan.keep.push_back(i);
    }
    for (const int32_t i : plan.keep) plan.planes.push_back(sums[i]);
    plan.planes.resize(2 * plan.keep.size(), static_cast<float>(rule));
    return plan;
  }

  // Writes the head's rule to new slots, and returns it. Prompt tokens after an earlier cut stay.
  static Rule hand_on(const StepInfo& step, int32_t layer, int32_t head, PolicySlots& slots) {
    const std::span<const int32_t> tokens = slots.tokens(layer, head);
    const std::span<float> sums = slots.plane(layer, head, 0), rules = slots.plane(layer, head, 1);
    size_t known = rules.size();
    while (known > 0 && rules[known - 1] == 0) --known;
    for (size_t i = known; known > 0 && i < rules.size(); ++i) {
      rules[i] = rules[known - 1];
      if (tokens[i] < step.n_prompt) sums[i] = INFINITY;
    }
    return rules.empty() ? Rule{} : static_cast<Rule>(rules.back());
  }

  void hide_others(const StepInfo& step, Rule rule, int32_t layer, int32_t head, PolicySlots& slots) const {
    const std::span<const int32_t> tokens = slots.tokens(layer, head);
    const auto n = static_cast<int32_t>(tokens.size());
    if (rule < kFrequent) {
      const bool stays = tokens.back() < step.n_prompt || keeps_token(rule, step.tokens, tokens.back());
      return stays ? void() : slots.hide(layer, head, n - 1);
    }
    const std::span<const float> sums = slots.plane(layer, head, 0);
    const int32_t n_frequent = slots_of(frequent_, step.n_tokens), first = first_in_window(slots, layer, head);
    const int32_t first_local = rule == kLocal ? step.n_tokens - slots_of(local_, step.n_prompt) : step.n_tokens;
    const auto sum = [&](int32_t i) { return sums[static_cast<size_t>(i)]; };
    // One slot is hidden in most steps, or none: a token adds less than one slot to the limit.
    while (slots.n_visible(layer, head) > n_frequent) {
      const std::span<const float> bias = slots.bias(layer, head);
      const auto visible = [&](int32_t i) { return bias.empty() || std::isfinite(bias[static_cast<size_t>(i)]); };
      int32_t least = -1, n_better = 0;
      for (int32_t i = first; i < n && tokens[static_cast<size_t>(i)] < first_local; ++i) {
        if (!visible(i) || keeps_token(rule, step.tokens, tokens[static_cast<size_t>(i)])) continue;
        if (least < 0 || sum(i) < sum(least)) least = i;
      }
      for (int32_t i = first; least >= 0 && i < n; ++i) {
        n_better += visible(i) && (sum(i) > sum(least) || (sum(i) == sum(least) && i > least));
      }
      if (n_better < n_frequent || std::isinf(sum(least))) return;
      slots.hide(layer, head, least);
    }
  }

  std::string name_;
  double recovery_, frequent_, local_;
};

}  // namespace

PolicyPtr make_fastgen(Parameters& p) {
  const double recovery = p.number("t", 0.95, 0.01, 1), frequent = p.number("frequent", 0.3, 0, 1);
  const double local = p.number("local", 0.3, 0, 1);
  return std::make_shared<FastGen>(p.resolved(), recovery, frequent, local);
}

}  // namespace vlcache
