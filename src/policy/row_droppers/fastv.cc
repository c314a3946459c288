// fastv: the first `k` layers compute the whole prompt; of its image tokens later layers compute a share of 1 - `r`,
// those that the last prompt token attends to most in layer k - 1, the mean over all heads. The others have no KV in
// later layers. A budget, if given, decides how many stay; if it does not come out even, some of the later layers have
// one token more. Source: arXiv:2403.06764; pkunlp-icler/FastV (attention of layer k - 1, topk of round(n (1 - r))
// tokens), which keeps the kept tokens' original positions, as we do, and supports one image, while we rank those of
// all together.
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "policy/registry.h"
#include "policy/row_dropping.h"

namespace vlcache {
namespace {

class FastV final : public RuledPolicy, public RowDropper {
 public:
  FastV(std::string name, int32_t n_dense, double dropped, MethodParts parts)
      : RuledPolicy(std::move(parts.rule)),
        name_(std::move(name)),
        n_dense_(n_dense),
        dropped_(dropped),
        budget_(parts.budget) {}

  std::string name() const override { return name_; }
  const RowDropper* row_dropper() const override { return this; }
  std::vector<CaptureRequest> needs(const PromptShape&) const override { return {{.window = 1, .window_sums = true}}; }

  std::vector<int32_t> rows_per_layer(const PlanInputs& in) const override {
    const int32_t n = in.prompt.n_tokens - in.first, n_layers = in.slots.n_layers();
    int32_t n_images = 0;
    for (int32_t t = in.first; t < in.prompt.n_tokens; ++t) n_images += may_go(in, t);
    std::vector<int32_t> rows(static_cast<size_t>(n_layers), n);
    // Images of an earlier turn were cut in that turn.
    if (n_images == 0 && in.prompt.n_vision > 0 && in.first > 0) return rows;
    const std::vector<int32_t> layers = kv_layers(in.slots);
    const auto n_dense = std::ranges::lower_bound(layers, n_dense_) - layers.begin(),
               n_later = std::ssize(layers) - n_dense;
    std::vector<int32_t> kept(layers.size(), n);  // of the layers with KV
    if (budget_) {
      const int64_t dense = n_dense * n, least = dense + n_later * (n - n_images);
      const auto n_all = std::ssize(layers);
      const auto rows_of_mean = [&](int32_t k) {
        for (int64_t i = 0, left = int64_t{k} * n_all - dense; i < n_later; ++i) {
          const int64_t share = (left + n_later - i - 1) / (n_later - i);  // rounded up: the earlier have more
          kept[static_cast<size_t>(n_dense + i)] = static_cast<int32_t>(share);
          left -= share;
        }
        return kept;
      };
      kept =
          rows_in_budget(*budget_, in, static_cast<int32_t>((least + n_all - 1) / n_all), why(n_images), rows_of_mean);
    } else {
      const auto n_stay = static_cast<int32_t>(std::nearbyint(n_images * (1 - dropped_)));
      std::fill(kept.begin() + n_dense, kept.end(), n - n_images + n_stay);
    }
    for (size_t i = 0; i < layers.size(); ++i) std::fill(rows.begin() + layers[i], rows.end(), kept[i]);
    return rows;
  }

  std::vector<int32_t> rows_after(const PlanInputs& in, int32_t, std::span<const int32_t> rows,
                                  int32_t n_rows) const override {
    int32_t ranking = n_dense_ - 1;
    while (in.slots.n_kv_heads(ranking) == 0) --ranking;
    const std::vector<float> paid = paid_to_tokens(in, ranking);
    std::vector<float> scores;
    for (const int32_t t : rows) {
      scores.push_back(may_go(in, t) ? paid[static_cast<size_t>(t - in.first)] : std::numeric_limits<float>::max());
    }
    std::vector<int32_t> kept = select_slots(scores, n_rows, {});
    for (int32_t& i : kept) i = rows[static_cast<size_t>(i)];
    return kept;
  }

  bool plan(const PlanInputs& in, KeepPlan& plan) const override {
    keep_tokens(in, {}, plan);
    return true;
  }

 private:
  static bool may_go(const PlanInputs& in, int32_t token) {
    return in.tokens[static_cast<size_t>(token)].meta.modality == Modality::kVision && token != in.prompt.n_tokens - 1;
  }
  std::string why(int32_t n_images) const {
    if (n_images == 0) return "fastv drops image tokens and there are none";
    return "fastv computes the first " + std::to_string(n_dense_) + " layers and all text in full";
  }

  std::string name_;
  int32_t n_dense_;
  double dropped_;
  std::optional<KvBudget> budget_;
};

}  // namespace

PolicyPtr make_fastv(Parameters& p, MethodParts parts) {
  const auto n_dense = static_cast<int32_t>(p.integer("k", 2, 1));
  const double dropped = p.number("r", 0.5, 0, 1);
  std::string name = p.resolved() + parts.rule_name;
  return std::make_shared<FastV>(std::move(name), n_dense, dropped, std::move(parts));
}

}  // namespace vlcache
