// post_vision: attention from the prompt's last tokens, the text after the last image, because the question decides
// what is needed. Source: VL-Cache, arXiv:2410.23317, section 4.2. Preset `paper` is the same; `effivlm` mirrors
// EffiVLM-Bench (VlCacheKVCluster), which ranks a layer's slots once, by all heads together, and adds a window to what
// it keeps.
#include <algorithm>

#include "policy/registry.h"

namespace vlcache {
namespace {

constexpr int32_t kPoolOfText = 7;  // SnapKV's, whose window replaces the missing one

class PostVision final : public TokenScorer {
 public:
  explicit PostVision(bool effivlm) : effivlm_(effivlm) {}

  CaptureRequest needs(const PromptShape& prompt) const override {
    return {.window = post_vision_window(prompt), .window_sums = true};
  }

  void score_head(const PartInputs& in, int32_t layer, int32_t head, std::span<float> scores) const override {
    const Tensor& sums = in.capture[static_cast<size_t>(layer)].window_sums;
    std::copy_n(sums.row<float>(head), scores.size(), scores.begin());
    if (effivlm_) {
      const int32_t n_heads = in.slots.n_kv_heads(layer);
      for (int32_t h = 0; h < n_heads; ++h) {
        if (h == head) continue;
        for (size_t i = 0; i < scores.size(); ++i) scores[i] += sums.row<float>(h)[i];
      }
    } else if (in.prompt.n_vision == 0) {
      max_pool(scores, kPoolOfText);
    }
  }

  Protected protects(int32_t n_keep, double share, const PromptShape& prompt) const override {
    if (!effivlm_) return TokenScorer::protects(n_keep, share, prompt);
    return {.n_first = 0, .n_last = slots_of(0.1 * share, prompt.n_tokens, Rounding::kDown)};
  }

 private:
  bool effivlm_;
};

}  // namespace

std::unique_ptr<const TokenScorer> make_post_vision(Parameters& p) {
  return std::make_unique<PostVision>(p.preset({"paper", "effivlm"}) == "effivlm");
}

}  // namespace vlcache
