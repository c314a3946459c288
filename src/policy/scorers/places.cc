// Static patterns, which use positions only: streaming with a budget (sinks and the last slots, StreamingLLM as the
// papers compare it, keys keeping their rotation), window (the last slots), dilated (every s-th of the earlier slots,
// the latest first, and after them the last r; Longformer, arXiv:2004.05150).
#include <algorithm>

#include "policy/registry.h"

namespace vlcache {
namespace {

class Places final : public TokenScorer {
 public:
  Places(int32_t n_sinks, int32_t stride, int32_t n_recent, Rounding rounding)
      : n_sinks_(n_sinks), stride_(stride), n_recent_(n_recent), rounding_(rounding) {}

  void score_head(const PartInputs& in, int32_t layer, int32_t head, std::span<float> scores) const override {
    const std::span<const int32_t> places = in.slots.places(layer, head);
    for (size_t i = 0; i < scores.size(); ++i) {
      const bool strided = places[i] % stride_ == 0;
      scores[i] = static_cast<float>(strided ? places[i] : places[i] - in.prompt.n_tokens);
    }
  }
  Protected protects(int32_t n_keep, double, const PromptShape&) const override {
    const int32_t n_first = std::clamp(n_keep - 1, 0, n_sinks_);
    return {.n_first = n_first, .n_last = std::min(n_keep - n_first, n_recent_)};
  }
  Rounding rounding() const override { return rounding_; }

 private:
  int32_t n_sinks_, stride_, n_recent_;
  Rounding rounding_;
};

}  // namespace

std::unique_ptr<const TokenScorer> make_sinks(Parameters& p) {
  const bool kvpress = p.preset({"kvpress"}) == "kvpress";
  const auto n_sinks = static_cast<int32_t>(p.integer("sinks", 4, 0));
  return std::make_unique<Places>(n_sinks, 1, INT32_MAX, kvpress ? Rounding::kKvpress : Rounding::kNearest);
}
std::unique_ptr<const TokenScorer> make_window(Parameters&) {
  return std::make_unique<Places>(0, 1, INT32_MAX, Rounding::kNearest);
}
std::unique_ptr<const TokenScorer> make_dilated(Parameters& p) {
  const auto stride = static_cast<int32_t>(p.integer("s", 4, 1));
  return std::make_unique<Places>(0, stride, static_cast<int32_t>(p.integer("r", 16, 1)), Rounding::kNearest);
}

}  // namespace vlcache
