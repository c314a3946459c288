// pointer (ours): keeps slots that some head points at. A model that answers from a page points at the right position
// with few heads, long before the answer reads it; a mean over heads or a budget per layer loses that. s_j = the
// largest attention that slot j gets from any layer, head and query of the text after the last image, or that one of
// the `reach` slots before it gets: reading on from a position needs the slots that follow. One set for the whole
// model; with `own`, a mean of that and of the largest attention in the head itself, with `own` as its weight. With
// `ahead`, the model first drafts this many tokens of an answer with everything kept, whose queries point, too: an
// answer that leads from one position to the next points at the second only once it has read the first. The draft is
// discarded; with `emit` it is the answer's beginning, and the policy acts after it (Policy::acts_after_tokens). `fit`
// is the ridge of biases and values fitted to all these queries (attention_fit/; 0: none). Preset `draft`: all of that
// without `emit`; preset `answer`: with it.
#include <algorithm>

#include "policy/attention_fit/attention_fit.h"
#include "policy/registry.h"

namespace vlcache {
namespace {

class Pointer final : public TokenScorer {
 public:
  Pointer(int32_t reach, int32_t ahead, bool emit, float own, double fit, double question)
      : reach_(reach), ahead_(ahead), emit_(emit), own_(own), fit_(fit), question_(question) {}

  CaptureRequest needs(const PromptShape& prompt) const override {
    return {.reduce = CaptureRequest::Reduce::kMax,
            .window = post_vision_window(prompt),
            .ahead = ahead_,
            .window_queries = fit_ > 0,
            .window_max = true};
  }

  void score(const PartInputs& in, SlotScores& scores) const override {
    // By token, since heads may hold different slots after an earlier turn.
    std::vector<float> best(in.tokens.size()), reached(in.tokens.size());
    for_each(in, scores,
             [&](size_t token, float attention, float&) { best[token] = std::max(best[token], attention); });
    for (size_t i = 0; i < best.size(); ++i) {
      const size_t begin = i - std::min(i, static_cast<size_t>(reach_));
      reached[i] =
          *std::max_element(best.begin() + static_cast<int64_t>(begin), best.begin() + static_cast<int64_t>(i) + 1);
    }
    for_each(in, scores, [&](size_t token, float attention, float& score) {
      score = own_ * attention + (1 - own_) * reached[token];
    });
  }

  int32_t n_answer_tokens() const override { return emit_ ? ahead_ : 0; }

  bool refits() const override { return fit_ > 0; }
  void refit(const PartInputs& in, int32_t layer, int32_t first, std::span<KeepPlan::Head> kept) const override {
    fit_kept_slots(in, layer, first, fit_, kept);
  }

  // The question itself stays, up to its share of the slots, and the last token in any case.
  Protected protects(int32_t n_keep, double, const PromptShape& prompt) const override {
    const auto most = static_cast<int32_t>(question_ * n_keep);
    return {.n_first = 0, .n_last = std::max(1, std::min(post_vision_window(prompt), most))};
  }

 private:
  static void for_each(const PartInputs& in, SlotScores& scores, const auto& use) {
    for (int32_t layer = 0; layer < in.slots.n_layers(); ++layer) {
      const Tensor& max = in.capture[static_cast<size_t>(layer)].window_max;
      for (int32_t head = 0; head < in.slots.n_kv_heads(layer); ++head) {
        const std::span<const int32_t> tokens = in.slots.tokens(layer, head);
        std::vector<float>& own = scores[static_cast<size_t>(layer)][static_cast<size_t>(head)];
        for (size_t i = 0; i < own.size(); ++i) {
          if (tokens[i] >= 0) use(static_cast<size_t>(tokens[i]), max.row<float>(head)[i], own[i]);
        }
      }
    }
  }

  int32_t reach_, ahead_;
  bool emit_;
  float own_;
  double fit_, question_;
};

}  // namespace

std::unique_ptr<const TokenScorer> make_pointer(Parameters& p) {
  const std::string_view preset = p.preset({"draft", "answer"});
  const bool draft = !preset.empty();
  const auto reach = static_cast<int32_t>(p.integer("reach", draft ? 1 : 3, 0));
  const auto ahead = static_cast<int32_t>(p.integer("ahead", draft ? 64 : 0, 0));
  const bool emit = p.integer("emit", preset == "answer" ? 1 : 0, 0, 1) == 1;
  const auto own = static_cast<float>(p.number("own", draft ? 0.8 : 0, 0, 1));
  const double fit = p.number("fit", draft ? 0.3 : 0, 0, 1), question = p.number("question", draft ? 0.1 : 0.5, 0, 1);
  return std::make_unique<Pointer>(reach, ahead, emit, own, fit, question);
}

}  // namespace vlcache
