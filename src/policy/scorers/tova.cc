// tova: what the last prompt token attends to, the mean over all heads: one set of slots for a layer. Source:
// arXiv:2401.06104. Preset `kvpress` (TOVAPress) keeps the last token and rounds as it does.
#include <algorithm>

#include "policy/registry.h"

namespace vlcache {
namespace {

class Tova final : public TokenScorer {
 public:
  explicit Tova(bool kvpress) : kvpress_(kvpress) {}

  CaptureRequest needs(const PromptShape&) const override { return {.window = 1, .window_sums = true}; }
  void score_head(const PartInputs& in, int32_t layer, int32_t, std::span<float> scores) const override {
    const Tensor& sums = in.capture[static_cast<size_t>(layer)].window_sums;
    std::ranges::fill(scores, 0.0f);
    const auto factor = 1.0f / static_cast<float>(sums.rows());
    for (int64_t h = 0; h < sums.rows(); ++h) {
      for (size_t i = 0; i < scores.size(); ++i) scores[i] += sums.row<float>(h)[i] * factor;
    }
  }
  Protected protects(int32_t n_keep, double share, const PromptShape& prompt) const override {
    return kvpress_ ? Protected{.n_first = 0, .n_last = 1} : TokenScorer::protects(n_keep, share, prompt);
  }
  Rounding rounding() const override { return kvpress_ ? Rounding::kKvpress : Rounding::kNearest; }

 private:
  bool kvpress_;
};

}  // namespace

std::unique_ptr<const TokenScorer> make_tova(Parameters& p) {
  return std::make_unique<Tova>(p.preset({"kvpress"}) == "kvpress");
}

}  // namespace vlcache
