// am (Attention Matching): keeps the keys that some query of the last `w` prompt tokens attends to most, then makes up
// for the others: a bias on every kept slot so that the kept ones weigh what all did, and new values so that the output
// stays the same. Fitted to those queries, per kv head. Few queries say little about future ones: with a large ridge
// less quality is lost than with the authors' none. `on=replay`: fitted to w queries of a repetition of the prompt
// instead (as kvzip), which needs no question. Source: arXiv:2602.16284, as HighestAttentionKeysCompaction of
// adamzweiger/compaction, except that the best of several biases is taken and that values are drawn to the old ones.
#include <algorithm>

#include "policy/attention_fit/attention_fit.h"
#include "policy/registry.h"

namespace vlcache {
namespace {

class AttentionMatching final : public TokenScorer {
 public:
  AttentionMatching(int32_t window, int32_t ahead, const Replay& replay, bool mean, double ridge, bool authors)
      : window_(window), ahead_(ahead), replay_(replay), mean_(mean), ridge_(ridge), authors_(authors) {}

  CaptureRequest needs(const PromptShape&) const override {
    return {.reduce = mean_ ? CaptureRequest::Reduce::kMean : CaptureRequest::Reduce::kMax,
            .window = window_,
            .ahead = ahead_,
            .window_queries = true,
            .window_sums = mean_,
            .window_max = !mean_,
            .replay = replay_};
  }

  void score_head(const PartInputs& in, int32_t layer, int32_t head, std::span<float> scores) const override {
    const LayerCapture& seen = in.capture[static_cast<size_t>(layer)];
    std::copy_n((mean_ ? seen.window_sums : seen.window_max).row<float>(head), scores.size(), scores.begin());
  }

  Protected protects(int32_t n_keep, double share, const PromptShape& prompt) const override {
    return authors_ ? Protected{} : TokenScorer::protects(n_keep, share, prompt);
  }

  bool refits() const override { return true; }
  void refit(const PartInputs& in, int32_t layer, int32_t first, std::span<KeepPlan::Head> kept) const override {
    fit_kept_slots(in, layer, first, ridge_, kept);
  }

 private:
  int32_t window_, ahead_;
  Replay replay_;
  bool mean_;
  double ridge_;
  bool authors_;
};

}  // namespace

std::unique_ptr<const TokenScorer> make_attention_matching(Parameters& p) {
  const bool authors = p.preset({"compaction"}) == "compaction";
  const auto window = static_cast<int32_t>(p.integer("w", 64, 1));
  const bool replayed = p.word("on", "prompt", {"prompt", "replay"}) == "replay";
  // Number of drafted tokens to fit to as well (see pointer).
  const auto ahead = static_cast<int32_t>(p.integer("ahead", 0, 0, replayed ? 0 : INT32_MAX));
  const bool mean = p.word("score", "max", {"max", "mean"}) == "mean";
  const Replay replay{.piece = replayed ? kReplayPiece : 0};
  return std::make_unique<AttentionMatching>(window, ahead, replay, mean, p.number("ridge", authors ? 1e-6 : 0.1, 0, 1),
                                             authors);
}

}  // namespace vlcache
