// razor (RazorAttention): heads that look far back according to a probe keep everything; the others keep the first
// slots, a window of max(window, n / ratio) last ones, and one slot with the mean key and value of all others, which
// weighs as many as it stands for. While an answer grows the window moves on; slots that leave it join that slot, a
// page at a time. Source: arXiv:2407.15891, Algorithm 1; a kv head is judged by the best of its query heads, as in the
// authors' company's MindSpore golden-stick.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "policy/head_scores.h"
#include "policy/parts.h"
#include "policy/registry.h"

namespace vlcache {
namespace {

class Razor final : public Policy {
 public:
  struct Sizes {
    int32_t n_sinks, window;
    double ratio;
  };
  Razor(std::string name, std::string file, HeadSet retrieval, const Sizes& sizes)
      : name_(std::move(name)), file_(std::move(file)), retrieval_(std::move(retrieval)), sizes_(sizes) {}

  std::string name() const override { return name_; }
  void check_fits(const PolicySlots& slots) const override { retrieval_.check_fits(slots, file_); }
  bool has_rule() const override { return true; }

  bool plan(const PlanInputs& in, KeepPlan& plan) const override {
    join(in.slots, in.prompt.n_tokens, plan);
    return true;
  }

  bool plan_step(const StepInfo& step, const PolicySlots& slots, KeepPlan& plan) const override {
    if (step.in_prompt) return false;
    const int32_t most = sizes_.n_sinks + 1 + window(step.n_tokens) + kPageSlots;
    for (int32_t layer = 0; layer < slots.n_layers(); ++layer) {
      for (int32_t head = 0; head < slots.n_kv_heads(layer); ++head) {
        if (retrieval_.has(layer, head) || slots.n_visible(layer, head) < most) continue;
        join(slots, step.n_tokens, plan);
        return true;
      }
    }
    return false;
  }

 private:
  int32_t window(int32_t n_tokens) const {
    return std::max(sizes_.window, static_cast<int32_t>(n_tokens / sizes_.ratio));
  }

  void join(const PolicySlots& slots, int32_t n_tokens, KeepPlan& plan) const {
    plan.layers.resize(static_cast<size_t>(slots.n_layers()));
    for (int32_t layer = 0; layer < slots.n_layers(); ++layer) {
      for (int32_t head = 0; head < slots.n_kv_heads(layer); ++head) {
        KeepPlan::Head& kept = plan.layers[static_cast<size_t>(layer)].emplace_back();
        kept.keep = lasting_slots(slots, layer, head);
        if (retrieval_.has(layer, head)) continue;
        const Protected around = Protected{sizes_.n_sinks, window(n_tokens)}.in_head(slots, layer, head);
        join_head(slots.bias(layer, head), around, kept);
      }
    }
  }

  // Joins the slots between the sinks and the window into one; a bias of ln c means that a slot stands for c.
  static void join_head(std::span<const float> bias, const Protected& around, KeepPlan::Head& kept) {
    const int64_t n_out = std::ssize(kept.keep) - around.n_first - around.n_last;
    if (n_out < 2) return;
    const auto first = kept.keep.begin() + around.n_first;
    KeepPlan::Merge merge{.sources = {first, first + n_out}, .weights = {}};
    for (const int32_t i : merge.sources) {
      merge.weights.push_back(bias.empty() ? 1 : std::exp(bias[static_cast<size_t>(i)]));
    }
    const float n = std::accumulate(merge.weights.begin(), merge.weights.end(), 0.0f);
    for (float& w : merge.weights) w /= n;
    kept.keep.erase(first, first + n_out);
    kept.slot_bias.assign(kept.keep.size() + 1, 0.0f);
    kept.slot_bias[static_cast<size_t>(around.n_first)] = std::log(n);
    kept.merges.push_back(std::move(merge));
  }

  std::string name_, file_;
  HeadSet retrieval_;
  Sizes sizes_;
};

}  // namespace

PolicyPtr make_razor(Parameters& p) {
  const double echo = p.number("echo", 0.01, 0, 1), induction = p.number("induction", 0.14, 0, 1);
  const Razor::Sizes sizes{.n_sinks = static_cast<int32_t>(p.integer("sinks", 4, 0)),
                           .window = static_cast<int32_t>(p.integer("window", 4000, 1)),
                           .ratio = p.number("ratio", 5, 1, 1e6)};
  const HeadFile file = read_head_file(p);
  if (file.scores.echo.empty()) {
    throw Error(ErrorCode::kInput, file.path + ": one score per head; razor needs those of its probe, which `vlcache " +
                                       "tune heads -m DIR` writes");
  }
  HeadSet retrieval(file.scores.echo);
  const auto n_of = [&](double share) {
    return share > 0 ? slots_of(share, static_cast<int32_t>(retrieval.n_heads())) : 0;
  };
  retrieval.add_best(file.scores.echo, n_of(echo));
  retrieval.add_best(file.scores.induction, n_of(induction));
  return std::make_shared<Razor>(p.resolved(), file.path, std::move(retrieval), sizes);
}

}  // namespace vlcache
