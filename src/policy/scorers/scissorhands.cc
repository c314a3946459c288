// scissorhands: how seldom the last queries have overlooked a slot, i.e. given it less than the uniform 1 / n. Source:
// arXiv:2305.17118. Preset `paper` protects the last r=10 slots.
#include <algorithm>

#include "policy/registry.h"

namespace vlcache {
namespace {

class Scissorhands final : public TokenScorer {
 public:
  Scissorhands(int32_t history, int32_t n_recent) : history_(history), n_recent_(n_recent) {}

  CaptureRequest needs(const PromptShape&) const override {
    return {.window = history_, .window_counts = true, .small_is_uniform = true};
  }
  void score_head(const PartInputs& in, int32_t layer, int32_t head, std::span<float> scores) const override {
    const float* below = in.capture[static_cast<size_t>(layer)].below_counts.row<float>(head);
    std::transform(below, below + scores.size(), scores.begin(), std::negate());
  }
  Protected protects(int32_t n_keep, double share, const PromptShape& prompt) const override {
    if (n_recent_ == 0) return TokenScorer::protects(n_keep, share, prompt);
    return {.n_first = 0, .n_last = std::min(n_recent_, prompt.n_tokens)};
  }

 private:
  int32_t history_, n_recent_;
};

}  // namespace

std::unique_ptr<const TokenScorer> make_scissorhands(Parameters& p) {
  const bool paper = p.preset({"paper"}) == "paper";
  const auto history = static_cast<int32_t>(p.integer("history", 400, 1));
  return std::make_unique<Scissorhands>(history, paper ? static_cast<int32_t>(p.integer("r", 10, 1)) : 0);
}

}  // namespace vlcache
