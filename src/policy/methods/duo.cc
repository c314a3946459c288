// duo (DuoAttention): retrieval heads keep everything, streaming heads the first and the last slots, in a window that
// slides while decoding. A file decides which heads are which: the authors' trained scores, or the scores of `vlcache
// tune heads`. Prefill is not changed; the authors' prefill streams in those heads, too. Source: arXiv:2410.10819;
// shares of heads as in sparsify_attention_heads of mit-han-lab/duo-attention, but without noise.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "policy/head_scores.h"
#include "policy/parts.h"
#include "policy/registry.h"

namespace vlcache {
namespace {

class Duo final : public Policy {
 public:
  Duo(std::string name, std::string file, HeadSet retrieval, int32_t n_sinks, int32_t n_recent)
      : name_(std::move(name)),
        file_(std::move(file)),
        retrieval_(std::move(retrieval)),
        n_sinks_(n_sinks),
        n_recent_(n_recent) {}

  std::string name() const override { return name_; }
  void check_fits(const PolicySlots& slots) const override { retrieval_.check_fits(slots, file_); }
  bool has_rule() const override { return true; }

  bool plan(const PlanInputs& in, KeepPlan& plan) const override {
    plan.layers.resize(static_cast<size_t>(in.slots.n_layers()));
    for (int32_t layer = 0; layer < in.slots.n_layers(); ++layer) {
      for (int32_t head = 0; head < in.slots.n_kv_heads(layer); ++head) {
        std::vector<int32_t> keep = lasting_slots(in.slots, layer, head);
        const int64_t n_sinks = Protected{.n_first = n_sinks_}.in_head(in.slots, layer, head).n_first;
        const int64_t n_out = std::ssize(keep) - n_sinks - n_recent_;
        if (!retrieval_.has(layer, head) && n_out > 0) {
          keep.erase(keep.begin() + n_sinks, keep.begin() + n_sinks + n_out);
        }
        plan.layers[static_cast<size_t>(layer)].push_back({.keep = std::move(keep)});
      }
    }
    return true;
  }

  // Hides slots that have left the window; they follow the sinks, slots hidden earlier first.
  void on_step(const StepInfo& step, PolicySlots& slots) const override {
    if (step.in_prompt) return;
    for (int32_t layer = 0; layer < slots.n_layers(); ++layer) {
      for (int32_t head = 0; head < slots.n_kv_heads(layer); ++head) {
        if (retrieval_.has(layer, head)) continue;
        const std::span<const float> bias = slots.bias(layer, head);
        const auto n = static_cast<int64_t>(slots.tokens(layer, head).size());
        for (int64_t i = n_slots_before(slots.places(layer, head), n_sinks_); i < n - n_recent_; ++i) {
          if (bias.empty() || std::isfinite(bias[static_cast<size_t>(i)])) {
            slots.hide(layer, head, static_cast<int32_t>(i));
          }
        }
      }
    }
  }

 private:
  std::string name_, file_;
  HeadSet retrieval_;
  int32_t n_sinks_, n_recent_;
};

}  // namespace

PolicyPtr make_duo(Parameters& p) {
  const double sparsity = p.number("sparsity", 0.5, 0, 1);   // share of streaming heads
  const double threshold = p.number("threshold", -1, 0, 1);  // instead: the least score of a retrieval head
  const auto n_sinks = static_cast<int32_t>(p.integer("sinks", 128, 0));
  const auto n_recent = static_cast<int32_t>(p.integer("recent", 256, 1));
  HeadFile file = read_head_file(p);
  HeadMatrix& scores = file.scores.induction;
  int64_t n_reach = 0;
  for (size_t l = 0; l < scores.size(); ++l) {
    for (size_t h = 0; h < scores[l].size(); ++h) {
      float& score = scores[l][h];
      if (!file.scores.echo.empty()) score = std::max(score, file.scores.echo[l][h]);
      n_reach += score >= static_cast<float>(threshold) ? 1 : 0;
    }
  }
  HeadSet retrieval(scores);
  const int64_t n = retrieval.n_heads();
  retrieval.add_best(scores, threshold >= 0 ? n_reach : n - std::llround(sparsity * static_cast<double>(n)));
  return std::make_shared<Duo>(p.resolved(), file.path, std::move(retrieval), n_sinks, n_recent);
}

}  // namespace vlcache
