// tova: attention of the last prompt token, the mean over all heads: heads that hold the same tokens keep the same
// ones. After an earlier turn they may hold different ones: a head that lacks a token pays it no attention. Source:
// arXiv:2401.06104. Preset `kvpress` (TOVAPress) keeps the last token and rounds as it does.
#include <algorithm>

#include "policy/registry.h"

namespace vlcache {
namespace {

class Tova final : public TokenScorer {
 public:
  explicit Tova(bool kvpress) : kvpress_(kvpress) {}

  CaptureRequest needs(const PromptShape&) const override { return {.window = 1, .window_sums = true}; }
  void score(const PartInputs& in, SlotScores& scores) const override {
    std::vector<float> paid;  // by token
    for (int32_t layer = 0; layer < in.slots.n_layers(); ++layer) {
      const int32_t n_heads = in.slots.n_kv_heads(layer);
      const auto for_each = [&](const auto& use) {
        for (int32_t head = 0; head < n_heads; ++head) {
          const std::span<const int32_t> tokens = in.slots.tokens(layer, head);
          for (size_t i = 0; i < tokens.size(); ++i) {
            if (tokens[i] >= 0) use(head, i, paid[static_cast<size_t>(tokens[i])]);
          }
        }
      };
      paid.assign(in.tokens.size(), 0.0f);
      const Tensor& sums = in.capture[static_cast<size_t>(layer)].window_sums;
      const auto factor = 1.0f / static_cast<float>(n_heads);
      for_each([&](int32_t head, size_t i, float& sum) { sum += sums.row<float>(head)[i] * factor; });
      for_each([&](int32_t head, size_t i, float& sum) {
        scores[static_cast<size_t>(layer)][static_cast<size_t>(head)][i] = sum;
      });
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
