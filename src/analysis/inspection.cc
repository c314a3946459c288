#include "analysis/inspection.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "analysis/forks.h"
#include "base/at.h"
#include "base/error.h"
#include "engine/answer_text.h"
#include "engine/scheduler/image_selection.h"
#include "engine/scheduler/scheduler.h"
#include "model/family.h"
#include "policy/registry.h"

namespace vlcache {
namespace {

constexpr float kSmall = 0.01f;  // of a row's largest attention, VL-Cache's p
constexpr const char* kRated[] = {"h2o", "zipcache_score", "snapkv", "post_vision", "pointer"};

std::vector<int32_t> best(std::span<const float> scores, int32_t k) { return select_slots(scores, k, {}); }

double overlap(const std::vector<int32_t>& a, const std::vector<int32_t>& b) {
  std::vector<int32_t> both;
  std::ranges::set_intersection(a, b, std::back_inserter(both));
  return b.empty() ? 1 : static_cast<double>(both.size()) / static_cast<double>(b.size());
}

double total(const Tensor& t) { return std::accumulate(t.as<float>(), t.as<float>() + t.numel(), 0.0); }

// The attention of each answer token, layer by layer.
class AnswerWatch final : public LayerHooks {
 public:
  AnswerWatch(const Inspection& inspection, const std::vector<SlotScores>& scores, std::span<const TokenInfo> tokens)
      : scores_(scores), n_prompt_(inspection.n_prompt), layers_(inspection.layers.size()) {
    for (int32_t i = 0; i < n_prompt_; ++i) vision_.push_back(tokens[at(i)].meta.modality == Modality::kVision);
    for (const InspectedLayer& layer : inspection.layers) budgets_.push_back(static_cast<int32_t>(layer.budget + 0.5));
  }

  bool wants_scores(int, int32_t) const override { return true; }
  bool after_attention(int layer, const Observed& observed, std::vector<int32_t>&) override {
    if (observed.scores.empty() || observed.scores[0].empty()) return false;
    Sums& sums = layers_[at(layer)];
    const Tensor& logits = observed.scores[0];
    const int32_t n_kv_heads = observed.views[0].n_kv_heads;
    const int64_t group = logits.rows() / n_kv_heads;
    std::vector<float> mean(at(n_prompt_));
    for (int64_t h = 0; h < logits.rows(); ++h) {
      if (h % group == 0) std::ranges::fill(mean, 0.0f);
      add_row({logits.row<float>(h), static_cast<size_t>(logits.dim(1))}, observed.lse.as<float>()[h], layer, mean,
              sums);
      if (h % group == group - 1 && sums.n_rows < logits.rows() + 1)
        rate(layer, static_cast<int32_t>(h / group), mean, sums);
    }
    return false;
  }

  void finish(Inspection& inspection) const {
    for (size_t l = 0; l < layers_.size(); ++l) {
      const Sums& sums = layers_[l];
      InspectedLayer& layer = inspection.layers[l];
      if (sums.n_rows == 0) continue;
      layer.decode_sparsity = sums.small / std::max(1.0, sums.seen);
      layer.vision_contribution = sums.contribution / static_cast<double>(sums.n_rows);
      layer.vision_coverage = sums.coverage / static_cast<double>(sums.n_rows);
      for (const double hits : sums.hits) layer.hit_rates.push_back(hits / std::max(1, sums.n_rated));
    }
  }

 private:
  struct Sums {
    double small = 0, seen = 0, contribution = 0, coverage = 0;
    std::vector<double> hits = std::vector<double>(std::size(kRated));
    int n_rated = 0;
    int64_t n_rows = 0;
  };

  void add_row(std::span<const float> logits, float lse, int layer, std::vector<float>& mean, Sums& sums) const {
    std::vector<float> row(at(n_prompt_));
    const float largest = *std::ranges::max_element(logits);
    double kept = 0, kept_vision = 0;
    for (size_t j = 0; j < logits.size(); ++j) {
      const float a = std::exp(logits[j] - lse);
      const bool small = logits[j] < largest + std::log(kSmall);
      sums.small += small;
      sums.seen += 1;
      if (!small) kept += a;
      if (j >= row.size()) continue;
      row[j] = a;
      mean[j] += a;
      if (!small && vision_[j]) kept_vision += a;
    }
    sums.contribution += kept > 0 ? kept_vision / kept : 0;
    const std::vector<int32_t> top = best(row, budgets_[at(layer)]);
    const auto n_vision = std::ranges::count_if(top, [&](int32_t i) { return vision_[at(i)]; });
    sums.coverage += top.empty() ? 0 : static_cast<double>(n_vision) / static_cast<double>(top.size());
    ++sums.n_rows;
  }

  void rate(int layer, int32_t head, std::span<const float> attention, Sums& sums) const {
    const std::vector<int32_t> top = best(attention, budgets_[at(layer)]);
    for (size_t i = 0; i < scores_.size(); ++i) {
      sums.hits[i] += overlap(best(scores_[i][at(layer)][at(head)], budgets_[at(layer)]), top);
    }
    ++sums.n_rated;
  }

  const std::vector<SlotScores>& scores_;
  int32_t n_prompt_;
  std::vector<bool> vision_;
  std::vector<int32_t> budgets_;
  std::vector<Sums> layers_;
};

// Keeps everything; records the layers' sparsity, every rated scorer's scores and what the policy would keep.
class Watch final : public Policy {
 public:
  struct Found {
    std::vector<double> sparsity;
    std::vector<SlotScores> scores;  // by kRated
    KeepPlan plan;
    std::optional<Error> error;
  };
  Watch(const Policy& policy, Found& found) : policy_(policy), found_(found) {
    for (const char* name : kRated) scorers_.push_back(make_scorer(name));
  }

  std::string name() const override { return "full"; }
  std::vector<CaptureRequest> needs(const PromptShape& prompt) const override {
    std::vector<CaptureRequest> all{counts(prompt)};
    for (const CaptureRequest& request : policy_.needs(prompt)) join(all, request);
    for (const auto& scorer : scorers_) {
      const CaptureRequest request = clipped(scorer->needs(prompt), prompt);
      if (request.any()) join(all, request);
    }
    return all;
  }
  bool plan(const PlanInputs& in, KeepPlan&) const override {
    const Capture& counted = answering(in.captures, counts(in.prompt));
    for (const LayerCapture& layer : counted.layers) {
      found_.sparsity.push_back(total(layer.below_counts) / std::max(1.0, total(layer.seen_counts)));
    }
    for (const auto& scorer : scorers_) {
      const CaptureRequest request = clipped(scorer->needs(in.prompt), in.prompt);
      PartInputs part{.slots = in.slots, .tokens = in.tokens, .prompt = in.prompt, .capture = {}};
      if (request.any()) part.capture = answering(in.captures, request).layers;
      found_.scores.push_back(empty_scores(in.slots));
      scorer->score(part, found_.scores.back());
    }
    try {
      plan_beside(policy_, in, found_.plan);
    } catch (const Error& e) {
      found_.error = e;
    }
    return false;
  }

 private:
  static CaptureRequest clipped(CaptureRequest request, const PromptShape& prompt) {
    request.window = std::min(request.window, prompt.n_tokens);
    return request;
  }
  static CaptureRequest counts(const PromptShape& prompt) {
    return {.window = post_vision_window(prompt), .window_counts = true, .threshold = kSmall};
  }

  const Policy& policy_;
  Found& found_;
  std::vector<std::unique_ptr<const TokenScorer>> scorers_;
};

// What each (layer, kv head) keeps: the plan's slots, or `stay` if tokens were dropped before the model computed them.
void note_kept(const KeepPlan& plan, const std::vector<int32_t>& stay, const PolicySlots& slots, Inspection& out) {
  for (size_t l = 0; l < out.layers.size(); ++l) {
    InspectedLayer& layer = out.layers[l];
    const auto n_heads = static_cast<size_t>(slots.n_kv_heads(static_cast<int32_t>(l)));
    for (size_t h = 0; h < n_heads; ++h) {
      std::vector<int32_t>& kept = layer.kept.emplace_back(stay);
      const auto tokens = slots.tokens(static_cast<int32_t>(l), static_cast<int32_t>(h));
      if (plan.layers.empty()) {
        if (stay.empty()) kept.assign(tokens.begin(), tokens.end());
      } else {
        for (const int32_t slot : plan.layers[l][h].keep) kept.push_back(tokens[at(slot)]);
      }
      layer.budget += static_cast<double>(kept.size()) / static_cast<double>(n_heads);
    }
  }
}

}  // namespace

Inspection inspect(Engine& engine, Prompt prompt, PolicyPtr policy, int32_t max_tokens) {
  const bool selects = !policy->vision_layers().empty(), drops_rows = policy->row_dropper() != nullptr;
  if (!selects && !drops_rows && !acts_after_prompt(*policy)) {
    throw Error(ErrorCode::kInput,
                "inspect: '" + policy->name() + "' evicts nothing after a prompt; choose one that does, such as draft");
  }
  Inspection out;
  const PromptShape shape = prompt.shape();
  out.policy = policy->name();
  out.n_prompt = shape.n_tokens;
  out.tau = shape.n_vision > 0 ? shape.n_after_vision : 0;
  out.rated.assign(std::begin(kRated), std::end(kRated));
  for (const ImageSpan& span : prompt.spans) {
    out.vision_spans.emplace_back(span.begin, span.end);
    const auto rects = token_rects(engine.model().config(), prompt.images[at(span.image)]);
    InspectedImage& image = out.images.emplace_back(InspectedImage{.begin = span.begin, .end = span.end, .rects = {}});
    for (int32_t token = span.begin; token < span.end; ++token) image.rects.push_back(rects[at(span.row_of(token))]);
  }

  std::vector<int32_t> stay;
  std::unique_ptr<Sequence> cut;
  std::vector<float> cut_logits;
  if (selects || drops_rows) {  // the policy changes the prefill itself
    Prompt shortened = prompt.copy();
    stay = select_image_tokens(engine, *policy, shortened);
    cut = engine.new_sequence(shortened, policy);
    cut_logits = last_logits(engine, *cut, std::move(shortened));
  }

  Watch::Found found;
  const auto full = engine.new_sequence(prompt, std::make_shared<Watch>(*policy, found));
  const std::vector<float> logits = last_logits(engine, *full, std::move(prompt));
  if (found.error) throw *found.error;
  for (const double sparsity : found.sparsity) out.layers.emplace_back().sparsity = sparsity;
  if (drops_rows) {
    note_kept({}, {}, cut->slots(), out);
  } else {
    note_kept(found.plan, stay, full->slots(), out);
  }
  if (cut == nullptr) {
    cut = full->fork(policy, found.plan);
    cut_logits = logits;
  }
  out.full_kv_bytes = full->cache().bytes() + full->cache().table_bytes();
  out.kv_bytes = cut->cache().bytes() + cut->cache().table_bytes();
  const std::vector<int32_t> stops = engine.stop_token_ids();
  AnswerWatch watch(out, found.scores, full->tokens());
  out.answer = answer_text(engine, greedy(engine, *cut, cut_logits, max_tokens, stops));
  out.full_answer = answer_text(engine, greedy(engine, *full, logits, max_tokens, stops, &watch));
  watch.finish(out);
  return out;
}

}  // namespace vlcache
