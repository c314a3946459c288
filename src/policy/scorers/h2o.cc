// h2o and zipcache_score: attention that a slot has received from the whole prompt; the latter per query that can see
// it, which removes the advantage of early slots. Sources: H2O, arXiv:2306.14048; ZipCache, arXiv:2405.14256. Presets
// of h2o: `paper` half heavy hitters, half recent; `kvpress` (ObservedAttentionPress), which is normalised and protects
// nothing; `kvcache-factory`, the last w=8 always kept; `effivlm`, a recent tenth rounded down.
#include <algorithm>

#include "policy/registry.h"

namespace vlcache {
namespace {

enum class Recent : uint8_t { kTenth, kHalf, kNone, kWindow, kTenthDown };

class Received final : public TokenScorer {
 public:
  Received(bool per_query, Recent recent, int32_t window, Rounding rounding)
      : per_query_(per_query), recent_(recent), window_(window), rounding_(rounding) {}

  CaptureRequest needs(const PromptShape&) const override { return {.all_sums = true}; }

  void score_head(const PartInputs& in, int32_t layer, int32_t head, std::span<float> scores) const override {
    const float* sums = in.capture[static_cast<size_t>(layer)].all_sums.row<float>(head);
    const std::span<const int32_t> tokens = in.slots.tokens(layer, head);
    const int32_t window = in.slots.window(layer);
    for (size_t i = 0; i < scores.size(); ++i) {
      int32_t n_seeing = in.prompt.n_tokens - tokens[i];
      if (window > 0) n_seeing = std::min(n_seeing, window);
      scores[i] = per_query_ ? sums[i] / static_cast<float>(std::max(n_seeing, 1)) : sums[i];
    }
  }

  Protected protects(int32_t n_keep, double share, const PromptShape& prompt) const override {
    switch (recent_) {
      case Recent::kTenth:
        break;
      case Recent::kHalf:
        return {.n_first = 0, .n_last = n_keep / 2};
      case Recent::kNone:
        return {};
      case Recent::kWindow:
        return {.n_first = 0, .n_last = std::min(window_, prompt.n_tokens)};
      case Recent::kTenthDown:
        return {.n_first = 0, .n_last = slots_of(0.1, n_keep, Rounding::kDown)};
    }
    return TokenScorer::protects(n_keep, share, prompt);
  }
  Rounding rounding() const override { return rounding_; }

 private:
  bool per_query_;
  Recent recent_;
  int32_t window_;
  Rounding rounding_;
};

}  // namespace

std::unique_ptr<const TokenScorer> make_h2o(Parameters& p) {
  const std::string_view preset = p.preset({"paper", "kvpress", "kvcache-factory", "effivlm"});
  if (preset == "paper") return std::make_unique<Received>(false, Recent::kHalf, 0, Rounding::kNearest);
  if (preset == "kvpress") return std::make_unique<Received>(true, Recent::kNone, 0, Rounding::kKvpress);
  if (preset == "effivlm") return std::make_unique<Received>(false, Recent::kTenthDown, 0, Rounding::kDown);
  if (preset == "kvcache-factory") {
    const auto window = static_cast<int32_t>(p.integer("w", 8, 1));
    return std::make_unique<Received>(false, Recent::kWindow, window, Rounding::kHalfEven);
  }
  return std::make_unique<Received>(false, Recent::kTenth, 0, Rounding::kNearest);
}

std::unique_ptr<const TokenScorer> make_zipcache_score(Parameters&) {
  return std::make_unique<Received>(true, Recent::kTenth, 0, Rounding::kNearest);
}

}  // namespace vlcache
