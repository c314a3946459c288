// pyramid_infer: layer l keeps its pivotal context, the share decay^l of the prompt's tokens that the last `w` tokens
// attend to most in it: the mean over rows and heads, rows weighted from 1 to `weight` towards the last. Later layers
// compute no others. The first `sinks` and, of the kept ones, the last tenth always stay; there are never fewer than
// `least`. A budget sets the decay (and `least` is 1 then); the first layer keeps all. While decoding, each layer's set
// is chosen again every `w` tokens (the rule `refresh`).
// Source: arXiv:2405.12532; mutonix/pyramidinfer keeps in layer l what layer l - 1 has chosen, uses a fifth of the
// prompt for w and protects it, shrinks the tokens before it by a factor that falls from 1 to 0.9 along a cosine, and
// while decoding looks at generated tokens alone.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "policy/registry.h"
#include "policy/row_dropping.h"

namespace vlcache {
namespace {

struct Shape {
  int32_t window = 32;
  double weight = 1.2, decay = 0.9;
  int32_t n_sinks = 4, n_least = 64;
};

class PyramidInfer final : public RuledPolicy, public RowDropper {
 public:
  PyramidInfer(std::string name, const Shape& shape, MethodParts parts)
      : RuledPolicy(std::move(parts.rule)), name_(std::move(name)), shape_(shape), budget_(parts.budget) {}

  std::string name() const override { return name_; }
  const RowDropper* row_dropper() const override { return this; }

  std::vector<CaptureRequest> needs(const PromptShape& prompt) const override {
    CaptureRequest request{.window = std::min(shape_.window, prompt.n_tokens), .window_sums = true};
    const auto last = static_cast<float>(std::max(1, request.window - 1));
    for (int32_t i = 0; i < request.window; ++i) {
      request.window_weights.push_back(1 + (static_cast<float>(shape_.weight) - 1) * static_cast<float>(i) / last);
    }
    return {request};
  }

  // A layer computes the tokens that the one before has kept.
  std::vector<int32_t> rows_per_layer(const PlanInputs& in) const override {
    const std::vector<int32_t> kept = n_kept(in);
    std::vector<int32_t> rows(static_cast<size_t>(in.slots.n_layers()), kept[0]);
    const std::vector<int32_t> layers = kv_layers(in.slots);
    for (size_t i = 0; i + 1 < layers.size(); ++i) std::fill(rows.begin() + layers[i] + 1, rows.end(), kept[i]);
    return rows;
  }

  std::vector<int32_t> rows_after(const PlanInputs& in, int32_t layer, std::span<const int32_t> rows,
                                  int32_t n_rows) const override {
    const std::vector<float> paid = paid_to_tokens(in, layer);
    std::vector<float> scores;
    for (const int32_t t : rows) scores.push_back(paid[static_cast<size_t>(t - in.first)]);
    const int32_t n_last = recent_slots(n_rows), n_first = in.first > 0 ? 0 : std::min(shape_.n_sinks, n_rows - n_last);
    std::vector<int32_t> kept = select_slots(scores, n_rows, {.n_first = n_first, .n_last = n_last});
    for (int32_t& i : kept) i = rows[static_cast<size_t>(i)];
    return kept;
  }

  // The next layer holds what a layer has chosen; the last layer has yet to choose.
  bool plan(const PlanInputs& in, KeepPlan& plan) const override {
    const std::vector<int32_t> layers = kv_layers(in.slots), kept = n_kept(in);
    std::vector<std::vector<int32_t>> stay(static_cast<size_t>(in.slots.n_layers()));
    for (size_t i = 0; i < layers.size(); ++i) {
      const bool last = i + 1 == layers.size();
      const std::span<const int32_t> tokens = in.slots.tokens(last ? layers[i] : layers[i + 1], 0);
      const auto rows =
          tokens.subspan(static_cast<size_t>(std::ranges::lower_bound(tokens, in.first) - tokens.begin()));
      std::vector<int32_t>& chosen = stay[static_cast<size_t>(layers[i])];
      chosen.assign(rows.begin(), rows.end());
      if (last) chosen = rows_after(in, layers[i], rows, kept[i]);
    }
    keep_tokens(in, stay, plan);
    return true;
  }

 private:
  // Number of new tokens kept in each layer with KV.
  std::vector<int32_t> n_kept(const PlanInputs& in) const {
    const int32_t n = in.prompt.n_tokens - in.first;
    const auto n_layers = static_cast<int32_t>(kv_layers(in.slots).size());
    if (budget_) {
      return rows_in_budget(*budget_, in, (n + 2 * n_layers - 2) / n_layers,
                            "pyramid_infer keeps all of the first layer",
                            [&](int32_t k) { return of_mean(k, n, n_layers); });
    }
    std::vector<int32_t> kept;
    for (int32_t i = 0; i < n_layers; ++i) {
      kept.push_back(std::max(std::min(shape_.n_least, n), slots_of(std::pow(shape_.decay, i), n)));
    }
    return kept;
  }

  // n decay^l tokens in layer l, one at least, with the decay that gives a mean of k.
  static std::vector<int32_t> of_mean(int32_t k, int32_t n, int32_t n_layers) {
    constexpr int kHalvings = 60;  // more than the bits of a double's fraction
    const auto parts = [&](double decay) {
      std::vector<double> all;
      for (int32_t i = 0; i < n_layers; ++i) all.push_back(std::max(1.0, n * std::pow(decay, i)));
      return all;
    };
    const int64_t total = int64_t{k} * n_layers;
    double low = 0, high = 1;
    for (int i = 0; i < kHalvings; ++i) {
      const double middle = (low + high) / 2;
      const std::vector<double> all = parts(middle);
      (std::accumulate(all.begin(), all.end(), 0.0) < static_cast<double>(total) ? low : high) = middle;
    }
    std::vector<int32_t> least(static_cast<size_t>(n_layers), 1), most(least.size(), n);
    least[0] = n;
    return deal(parts(high), least, most, total);
  }

  std::string name_;
  Shape shape_;
  std::optional<KvBudget> budget_;
};

}  // namespace

PolicyPtr make_pyramid_infer(Parameters& p, MethodParts parts) {
  Shape shape;
  shape.window = static_cast<int32_t>(p.integer("w", shape.window, 1));
  shape.weight = p.number("weight", shape.weight, 1, 1e6);
  shape.decay = p.number("decay", shape.decay, 0, 1);
  shape.n_sinks = static_cast<int32_t>(p.integer("sinks", shape.n_sinks, 0));
  shape.n_least = static_cast<int32_t>(p.integer("least", shape.n_least, 1));
  std::string name = p.resolved() + parts.rule_name;
  if (!parts.says_rule) {
    Parameters rule = Parameters::parse("refresh:every=" + std::to_string(shape.window));
    parts.rule = make_refresh_rule(rule);
  }
  return std::make_shared<PyramidInfer>(std::move(name), shape, std::move(parts));
}

}  // namespace vlcache
