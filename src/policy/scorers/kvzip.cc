// kvzip: the model repeats the prompt after itself, in pieces; the slots it attends to for that carry the prompt, for
// any question. s_j = the largest attention of any query of the group and the replay to slot j. The first `sinks` slots
// stay and are not repeated. Costs two to three prefills. Source: arXiv:2505.23416, as KVzipPress of kvpress computes
// it. The preset `kvpress` skips the tokens that the chat template writes before the first message: of
// these the sinks stay, and the others score 0.
#include <algorithm>

#include "policy/registry.h"

namespace vlcache {
namespace {

class Kvzip final : public TokenScorer {
 public:
  Kvzip(const Replay& replay, bool kvpress) : replay_(replay), kvpress_(kvpress) {}

  CaptureRequest needs(const PromptShape& prompt) const override {
    Replay replay = replay_;
    replay.n_skipped = kvpress_ ? prompt.n_template : replay.n_sinks;
    return {.reduce = CaptureRequest::Reduce::kMax, .window_max = true, .replay = replay};
  }

  void score_head(const PartInputs& in, int32_t layer, int32_t head, std::span<float> scores) const override {
    std::copy_n(in.capture[static_cast<size_t>(layer)].window_max.row<float>(head), scores.size(), scores.begin());
  }

  Protected protects(int32_t n_keep, double share, const PromptShape& prompt) const override {
    if (kvpress_) return {.n_first = std::min(replay_.n_sinks, n_keep)};
    const Protected recent = TokenScorer::protects(n_keep, share, prompt);
    return {.n_first = std::min(replay_.n_sinks, n_keep - recent.n_last), .n_last = recent.n_last};
  }

 private:
  Replay replay_;
  bool kvpress_;
};

}  // namespace

std::unique_ptr<const TokenScorer> make_kvzip(Parameters& p) {
  const bool kvpress = p.preset({"kvpress"}) == "kvpress";
  const auto piece = static_cast<int32_t>(p.integer("piece", kReplayPiece, 16));
  return std::make_unique<Kvzip>(Replay{.piece = piece, .n_sinks = static_cast<int32_t>(p.integer("sinks", 4, 0))},
                                 kvpress);
}

}  // namespace vlcache
