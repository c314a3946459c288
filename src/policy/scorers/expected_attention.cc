// expected_attention: the attention of future queries, if they are like the prompt's queries: a normal distribution of
// their mean and covariance, rotated to the next `future` positions, whose expected exp(logit) is exp(k mean s + k cov
// k s^2 / 2). Softmax over the slots, mean over the group, times |v|. Needs no question. Source: arXiv:2510.00636;
// preset `kvpress` (ExpectedAttentionPress) protects the sinks alone.
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/at.h"
#include "base/buffer.h"
#include "base/os/threads.h"
#include "policy/registry.h"
#include "policy/vectors.h"

namespace vlcache {
namespace {

class ExpectedAttention final : public TokenScorer {
 public:
  ExpectedAttention(int32_t future, int32_t n_sinks, bool kvpress)
      : future_(future), n_sinks_(n_sinks), kvpress_(kvpress) {}

  CaptureRequest needs(const PromptShape&) const override { return {.future = future_, .future_skip = n_sinks_}; }

  void score_head(const PartInputs& in, int32_t layer, int32_t head, std::span<float> scores) const override {
    const auto n = static_cast<int64_t>(scores.size()), d = int64_t{in.slots.head_dim(layer)};
    const Buffer storage(2 * n * d * dtype_bytes(DType::kF32));
    const Tensor k(storage.data(), DType::kF32, {n, d}), v(k.as<float>() + n * d, DType::kF32, {n, d});
    in.slots.read(layer, head, k, v);
    const LayerCapture& seen = in.capture[static_cast<size_t>(layer)];
    const int64_t group = seen.future_mean.rows() / in.slots.n_kv_heads(layer);
    // Neither the sinks are among the slots that share the attention, nor slots that the window has passed: their pages
    // may be freed.
    const auto first = static_cast<size_t>(
        std::max(n_slots_before(in.slots.places(layer, head), n_sinks_), first_in_window(in.slots, layer, head)));
    std::vector<float> logits(scores.size());
    std::ranges::fill(scores, 0.0f);
    for (int64_t h = head * group; h < (head + 1) * group; ++h) {
      const float *mean = seen.future_mean.row<float>(h), *covariance = seen.future_covariance.row<float>(h);
      parallel_ranges(n, 1, [&](int64_t begin, int64_t end, int) {
        for (int64_t i = begin; i < end; ++i) {
          logits[static_cast<size_t>(i)] = expected(k.row<float>(i), mean, covariance, d, seen.scale);
        }
      });
      const float sink = seen.sink_logits.empty() ? -std::numeric_limits<float>::infinity() : seen.sink_logits[at(h)];
      add_softmax(std::span(logits).subspan(first), sink, static_cast<float>(group), scores.subspan(first));
    }
    for (int64_t i = 0; i < n; ++i) {
      scores[static_cast<size_t>(i)] *= std::sqrt(inner_product(v.row<float>(i), v.row<float>(i), d));
    }
  }

  Protected protects(int32_t n_keep, double share, const PromptShape& prompt) const override {
    if (kvpress_) return {.n_first = std::min(n_sinks_, n_keep)};
    const Protected recent = TokenScorer::protects(n_keep, share, prompt);
    return {.n_first = std::min(n_sinks_, (n_keep - recent.n_last) / 2), .n_last = recent.n_last};
  }
  Rounding rounding() const override { return kvpress_ ? Rounding::kKvpress : Rounding::kNearest; }

 private:
  static float expected(const float* k, const float* mean, const float* covariance, int64_t d, float scale) {
    float square = 0;
    for (int64_t a = 0; a < d; ++a) square += k[a] * inner_product(covariance + a * d, k, d);
    return scale * inner_product(k, mean, d) + scale * scale * square / 2;
  }
  // sink: the logit of the query head that is no slot's.
  static void add_softmax(std::span<float> x, float sink, float group, std::span<float> scores) {
    if (x.empty()) return;
    const float top = std::max(sink, *std::ranges::max_element(x));
    float sum = std::exp(sink - top);
    for (float& value : x) sum += value = std::exp(value - top);
    for (size_t i = 0; i < x.size(); ++i) scores[i] += x[i] / sum / group;
  }

  int32_t future_, n_sinks_;
  bool kvpress_;
};

}  // namespace

std::unique_ptr<const TokenScorer> make_expected_attention(Parameters& p) {
  const bool kvpress = p.preset({"kvpress"}) == "kvpress";
  const auto future = static_cast<int32_t>(p.integer("future", 512, 1, 1 << 16));
  return std::make_unique<ExpectedAttention>(future, static_cast<int32_t>(p.integer("sinks", 4, 0)), kvpress);
}

}  // namespace vlcache
