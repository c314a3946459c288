// snapkv: attention from the prompt's last tokens, pooled so that adjacent slots stay together. Source:
// arXiv:2404.14469. Presets keep their whole window: `paper` w=32, k=7, max pool; `kvpress` (SnapKVPress) w=64, k=5,
// mean pool; `kvcache-factory` w=8, k=7, max pool over the mean of a kv head's queries.
#include <algorithm>

#include "policy/registry.h"

namespace vlcache {
namespace {

class SnapKv final : public TokenScorer {
 public:
  SnapKv(int32_t window, int32_t ahead, int32_t kernel, bool mean, bool keeps_window, Rounding rounding)
      : window_(window),
        ahead_(ahead),
        kernel_(kernel),
        mean_(mean),
        keeps_window_(keeps_window),
        rounding_(rounding) {}

  CaptureRequest needs(const PromptShape&) const override {
    return {.window = window_, .ahead = ahead_, .window_sums = true};
  }

  void score_head(const PartInputs& in, int32_t layer, int32_t head, std::span<float> scores) const override {
    const float* sums = in.capture[static_cast<size_t>(layer)].window_sums.row<float>(head);
    std::copy_n(sums, scores.size(), scores.begin());
    // Protected slots are not pooled into the slots before them.
    const size_t n =
        keeps_window_ ? scores.size() - std::min(scores.size(), static_cast<size_t>(window_)) : scores.size();
    (mean_ ? mean_pool : max_pool)(scores.first(n), kernel_);
  }

  Protected protects(int32_t n_keep, double share, const PromptShape& prompt) const override {
    if (!keeps_window_) return TokenScorer::protects(n_keep, share, prompt);
    return {.n_first = 0, .n_last = std::min(window_, prompt.n_tokens)};
  }
  Rounding rounding() const override { return rounding_; }

 private:
  int32_t window_, ahead_, kernel_;
  bool mean_, keeps_window_;
  Rounding rounding_;
};

}  // namespace

std::unique_ptr<const TokenScorer> make_snapkv(Parameters& p) {
  const std::string_view preset = p.preset({"paper", "kvpress", "kvcache-factory"});
  const bool kvpress = preset == "kvpress", factory = preset == "kvcache-factory";
  const auto window = static_cast<int32_t>(p.integer("w", kvpress ? 64 : factory ? 8 : 32, 1));
  const auto kernel = static_cast<int32_t>(p.odd("k", kvpress ? 5 : 7));
  const bool mean = p.word("pool", kvpress ? "mean" : "max", {"max", "mean"}) == "mean";
  const Rounding rounding = kvpress ? Rounding::kKvpress : factory ? Rounding::kHalfEven : Rounding::kNearest;
  const auto ahead = static_cast<int32_t>(p.integer("ahead", 0, 0));  // drafted tokens that count, too (see pointer)
  return std::make_unique<SnapKv>(window, ahead, kernel, mean, !preset.empty(), rounding);
}

}  // namespace vlcache
