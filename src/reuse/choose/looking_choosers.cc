// The choosers with a preview: which layers and tokens each of them looks at.
#include "reuse/choose/looking_choosers.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <vector>

#include "base/error.h"

namespace vlcache {
namespace {

constexpr double kShare = 0.15;      // from arXiv:2405.16444's experiments
constexpr double kAskedShare = 0.1;  // 94 % of the accuracy on questions about two pages (docs/studies/reuse.md)
// Computed values depend on the prompt from layer 1 on: layer 0's K and V come from the embeddings alone.
constexpr int32_t kLookedAt = 1;

// The step's row of each token, -1 for tokens that are not in the step; both ascend.
std::vector<int32_t> rows_of(std::span<const int32_t> tokens, std::span<const int32_t> of_rows) {
  std::vector<int32_t> rows;
  for (const int32_t token : tokens) {
    const auto at = std::ranges::lower_bound(of_rows, token);
    rows.push_back(at != of_rows.end() && *at == token ? static_cast<int32_t>(at - of_rows.begin()) : -1);
  }
  return rows;
}

// CacheBlend (arXiv:2405.16444): the tokens whose V changes most, as seen in layer 1; 1.5 r of them in the first
// layers, r of them from then on. The paper ranks the remaining tokens again in every layer on the way, here the first
// ranking stands (as in its authors' code, which takes r at once); values that the first two layers compute for the
// others are discarded.
class Cacheblend final : public ReuseChooser {
 public:
  explicit Cacheblend(Parameters& p) : r_(p.number("r", kShare, 0, 1)), name_(p.resolved()) {}

  std::string name() const override { return name_; }
  RecomputePlan plan(int32_t n_layers, int32_t) const override {
    constexpr double kFirst = 1.5;
    constexpr int32_t kNarrowed = 4;  // layers from 1.5 r to r
    std::vector<double> shares;
    for (int32_t layer = 0; layer < n_layers; ++layer) {
      const double left = std::clamp(1 - (layer - kLookedAt) / static_cast<double>(kNarrowed), 0.0, 1.0);
      shares.push_back(std::min(1.0, r_ * (1 + (kFirst - 1) * left)));
    }
    return RecomputePlan(std::move(shares));
  }
  Preview preview(int32_t n_layers) const override {
    return {.first_layer = kLookedAt, .n_layers = std::min(n_layers, kLookedAt + 1), .reused_tokens = true};
  }
  void score(const PreviewedLayer& seen, const Tensor& scores) const override {
    const std::vector<int32_t> rows = rows_of(seen.tokens, seen.observed.tokens);
    for (size_t i = 0; i < rows.size(); ++i) {
      if (rows[i] < 0) continue;
      const auto token = static_cast<int64_t>(i);
      const float *fresh = seen.v.row<float>(token), *loaded = seen.loaded_v.row<float>(token);
      double sum = 0;
      for (int64_t c = 0; c < seen.v.row_size(); ++c) {
        const double d = static_cast<double>(fresh[c]) - loaded[c];
        sum += d * d;
      }
      scores.row<float>(0)[i] = static_cast<float>(sum);
    }
  }

 private:
  double r_;
  std::string name_;
};

// e^(logit - lse) of a query for each of the first n reused tokens; `keys` [n, Hk, d].
void attention_to(const PreviewedLayer& seen, int64_t row, int64_t head, const Tensor& keys, std::span<double> to) {
  const Observed& o = seen.observed;
  const int64_t d = keys.dim(2), kv_head = head / (o.q.dim(1) / keys.dim(1));
  const auto component = [&](int64_t c) {
    const int64_t at = head * d + c;
    return o.q.dtype == DType::kF32 ? o.q.row<float>(row)[at] : to_float(o.q.row<bf16>(row)[at]);
  };
  std::vector<float> q;
  for (int64_t c = 0; c < d; ++c) q.push_back(component(c));
  const int32_t token = o.tokens[static_cast<size_t>(row)];
  for (size_t j = 0; j < to.size(); ++j) {
    const float* k = keys.row<float>(static_cast<int64_t>(j)) + kv_head * d;
    double dot = 0;
    for (int64_t c = 0; c < d; ++c) dot += static_cast<double>(q[static_cast<size_t>(c)]) * k[c];
    const bool sees = o.window == 0 || seen.tokens[j] > token - o.window;
    to[j] = sees ? std::exp(dot * o.scale - o.lse.row<float>(row)[head]) : 0;
  }
}

// KVShare (arXiv:2503.16525): the tokens to which the attention of text changes most if they are not recomputed, sum
// over heads and queries of |A_fresh - A_reused| in layer 1; r of them, in all layers. Its second stage, during
// decoding, is left out.
class Kvshare final : public ReuseChooser {
 public:
  explicit Kvshare(Parameters& p) : r_(p.number("r", kShare, 0, 1)), name_(p.resolved()) {}

  std::string name() const override { return name_; }
  RecomputePlan plan(int32_t n_layers, int32_t) const override { return RecomputePlan::uniform(n_layers, r_); }
  Preview preview(int32_t n_layers) const override {
    return {.first_layer = kLookedAt, .n_layers = std::min(n_layers, kLookedAt + 1), .reused_tokens = true};
  }
  void score(const PreviewedLayer& seen, const Tensor& scores) const override {
    const Observed& o = seen.observed;
    for (size_t i = 0; i < o.tokens.size(); ++i) {
      const auto before = std::ranges::lower_bound(seen.tokens, o.tokens[i]);
      if (before != seen.tokens.end() && *before == o.tokens[i]) continue;  // not text
      const auto n = static_cast<size_t>(before - seen.tokens.begin());
      std::vector<double> fresh(n), reused(n);
      for (int64_t head = 0; head < o.q.dim(1); ++head) {
        const auto row = static_cast<int64_t>(i);
        attention_to(seen, row, head, seen.k, fresh);
        attention_to(seen, row, head, seen.loaded_k, reused);
        double sum = 1;  // of the row with the loaded keys, over that with the fresh ones
        for (size_t j = 0; j < n; ++j) sum += reused[j] - fresh[j];
        float* to = scores.row<float>(head);
        for (size_t j = 0; j < n; ++j) to[j] += static_cast<float>(std::abs(fresh[j] - reused[j] / sum));
      }
    }
  }

 private:
  double r_;
  std::string name_;
};

// The maximum of scores[i - after .. i + before] within the same image: tokens after one that is attended to usually
// belong to it.
std::vector<double> spread(std::span<const double> scores, std::span<const size_t> images, size_t before,
                           size_t after) {
  std::vector<double> most(scores.begin(), scores.end());
  for (size_t i = 0; i < scores.size(); ++i) {
    const size_t end = std::min(scores.size(), i + before + 1);
    for (size_t j = i - std::min(i, after); j < end; ++j) {
      if (images[j] == images[i]) most[i] = std::max(most[i], scores[j]);
    }
  }
  return most;
}

// Ours, for questions that need several images: the tokens that the text after the images attends to while all of them
// are loaded, in all but the first third of the layers. (Attention in that third goes to near tokens and to sinks.) A
// token's relation to another image was unknown when it was recorded; tokens that no query attends to may go without.
// Each token and head has the maximum over those queries: most of the choice is by its squares, so that one head is
// enough to point at a position, the rest by sums; both extend to the four tokens after and the one before, since a
// sentence's names are attended to more than its statements about them, the first also to near tokens. The last sixth
// of the layers takes the recorded values: recomputation matters least there, and other layers get more tokens.
// With several looks, the text attends to what the earlier ones have recomputed; their tokens keep the K and V that
// they got then, and so do not attend to what later looks choose.
class Asked final : public ReuseChooser {
 public:
  explicit Asked(Parameters& p)
      : r_(p.number("r", kAskedShare, 0, 1)),
        from_(p.number("from", 1.0 / 3, 0, 0.99)),
        to_(p.number("to", 5.0 / 6, 0.01, 1)),
        pointed_(p.number("pointed", 0.57, 0, 1)),
        looks_(static_cast<int32_t>(p.integer("looks", 1, 1, 8))),
        name_(p.resolved()) {}

  std::string name() const override { return name_; }
  RecomputePlan plan(int32_t n_layers, int32_t) const override {
    const auto n_computing = std::max(1, static_cast<int32_t>(std::lround(to_ * n_layers)));
    const double first = std::min(1.0, r_ * n_layers / n_computing), rest = r_ * n_layers - first * n_computing;
    const double last = std::clamp(rest / std::max(1, n_layers - n_computing), 0.0, first);
    std::vector<double> shares(static_cast<size_t>(n_layers), last);
    std::fill_n(shares.begin(), n_computing, first);
    return RecomputePlan(std::move(shares));
  }
  std::vector<double> rank(const PreviewScores& seen) const override {
    constexpr size_t kBefore = 1, kAfter = 4, kNear = 6;
    constexpr double kNearShare = 0.1;
    const size_t n = seen.images.size();
    std::vector<double> asked = spread(sum_scores(seen, 1), seen.images, kBefore, kAfter);
    std::vector<double> pointed = spread(sum_scores(seen, 2), seen.images, kBefore, kAfter);
    const std::vector<double> near = spread(pointed, seen.images, kNear, kNear);
    for (size_t i = 0; i < n; ++i) pointed[i] = std::max(pointed[i], kNearShare * near[i]);
    for (size_t i = 0; i < seen.chosen.size(); ++i) {
      if (seen.chosen[i] > 0) pointed[i] = -1;
    }
    std::vector<size_t> order(n);
    std::iota(order.begin(), order.end(), size_t{0});
    std::ranges::stable_sort(order, std::greater(), [&](size_t i) { return pointed[i]; });
    const double most = 1 + (asked.empty() ? 0 : std::ranges::max(asked));
    const auto n_first = static_cast<size_t>(std::lround(pointed_ * seen.n_wanted));
    for (const size_t i : std::span(order).first(std::min(n, n_first))) asked[i] += most;
    return asked;
  }
  Preview preview(int32_t n_layers) const override {
    return {.first_layer = static_cast<int32_t>(from_ * n_layers),
            .n_layers = n_layers,
            .reused_tokens = false,
            .n_looks = looks_};
  }
  void score(const PreviewedLayer& seen, const Tensor& scores) const override {
    const Observed& o = seen.observed;
    const auto first = std::ranges::upper_bound(o.tokens, seen.tokens.back()) - o.tokens.begin();
    const int64_t n = std::ssize(o.tokens) - first, n_heads = o.q.dim(1);
    if (n == 0) return;
    const KvView& view = o.views.back();
    const int32_t n_slots = *std::max_element(view.n_slots, view.n_slots + view.n_kv_heads), last = o.tokens.back();
    std::vector<int32_t> after;
    for (const int32_t token : o.tokens.last(static_cast<size_t>(n))) after.push_back(last - token);
    std::vector<float> most(static_cast<size_t>(n_heads * n_slots), 0.0f);
    AttentionStats stats;
    stats.n_after = after.data();
    stats.lse = o.lse.slice_rows(first, first + n);
    stats.column_max = Tensor(most.data(), DType::kF32, {n_heads, n_slots});
    const AttentionArgs args{
        .scale = o.scale, .window = o.window, .positions = o.tokens.data() + first, .sink_logits = o.sink_logits};
    seen.backend.attention_stats(o.q.slice_rows(first, first + n), view, args, stats);
    for (int64_t head = 0; head < n_heads; ++head) {
      // No slot was evicted since the first image: its tokens' slots are counted from the last.
      const int32_t shift = view.n_slots[head / (n_heads / view.n_kv_heads)] - 1 - last;
      const float* row = stats.column_max.row<float>(head);
      float* to = scores.row<float>(head);
      for (size_t j = 0; j < seen.tokens.size(); ++j) to[j] = std::max(to[j], row[seen.tokens[j] + shift]);
    }
  }

 private:
  double r_, from_, to_, pointed_;
  int32_t looks_;
  std::string name_;
};

}  // namespace

ReuseChooserPtr make_cacheblend(Parameters& p) { return std::make_shared<Cacheblend>(p); }
ReuseChooserPtr make_kvshare(Parameters& p) { return std::make_shared<Kvshare>(p); }
ReuseChooserPtr make_asked(Parameters& p) { return std::make_shared<Asked>(p); }

}  // namespace vlcache
