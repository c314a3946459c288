// The policy that combines a scorer and an allocator and evicts after a prompt.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/at.h"
#include "base/error.h"
#include "base/os/threads.h"
#include "policy/ruled_policy.h"

namespace vlcache {
namespace {

constexpr double kRecentShare = 0.1;
constexpr float kGone = -std::numeric_limits<float>::infinity();

int64_t n_heads(const PolicySlots& slots) {
  int64_t n = 0;
  for (int32_t layer = 0; layer < slots.n_layers(); ++layer) n += slots.n_kv_heads(layer);
  return n;
}

void for_each_head(const PolicySlots& slots, const auto& use) {
  for (int32_t layer = 0; layer < slots.n_layers(); ++layer) {
    for (int32_t head = 0; head < slots.n_kv_heads(layer); ++head) use(layer, head);
  }
}

class EvictionPolicy final : public RuledPolicy {
 public:
  EvictionPolicy(EvictionParts parts, std::unique_ptr<const DecodeRule> rule)
      : RuledPolicy(std::move(rule)), parts_(std::move(parts)) {}

  std::string name() const override { return parts_.name; }
  std::vector<CaptureRequest> needs(const PromptShape& prompt) const override { return asked(prompt).requests; }

  // A policy that acts within the answer must not fail there.
  void check_fits(const PolicySlots& slots) const override {
    if (acts_after_tokens() > 0) check_bytes(slots);
  }

  int32_t acts_after_tokens() const override { return parts_.scorer->n_answer_tokens(); }

  bool plan(const PlanInputs& in, KeepPlan& plan) const override {
    for (int32_t part = 0; part < n_plan_parts(in.slots); ++part) plan_part(in, part, plan);
    return true;
  }

  // The choice, then fits of as many heads at once as there are threads.
  int32_t n_plan_parts(const PolicySlots& slots) const override {
    int32_t n = 1;
    for (int32_t layer = 0; parts_.scorer->refits() && layer < slots.n_layers(); ++layer) {
      n += n_fits(slots.n_kv_heads(layer));
    }
    return n;
  }

  bool plan_part(const PlanInputs& in, int32_t part, KeepPlan& plan) const override {
    if (part == 0) {
      choose(in, plan);
    } else {
      int32_t layer = 0, fit = part - 1;
      for (; fit >= n_fits(in.slots.n_kv_heads(layer)); ++layer) fit -= n_fits(in.slots.n_kv_heads(layer));
      const std::span<KeepPlan::Head> heads = plan.layers[at(layer)];
      const size_t first = at(fit) * at(n_threads()), n = std::min(at(n_threads()), heads.size() - first);
      parts_.scorer->refit(part_inputs(in, asked(in.prompt).scorer), layer, static_cast<int32_t>(first),
                           heads.subspan(first, n));
    }
    return true;
  }

 private:
  static int32_t n_fits(int32_t n_kv_heads) { return (n_kv_heads + n_threads() - 1) / n_threads(); }

  void check_bytes(const PolicySlots& slots) const {
    if (parts_.budget.kind != KvBudget::Kind::kBytes) return;
    int64_t least_bytes = 0;
    for_each_head(slots, [&](int32_t layer, int32_t) { least_bytes += slots.page_bytes(layer); });
    if (parts_.budget.value >= static_cast<double>(least_bytes)) return;
    throw Error(ErrorCode::kInput, "KV budget: " + std::to_string(static_cast<int64_t>(parts_.budget.value)) +
                                       " bytes are less than a page for each layer and kv head of this model, " +
                                       std::to_string(least_bytes));
  }

  // The capture requests of all parts, and the index of each part's request; -1: the part needs none.
  struct Asked {
    std::vector<CaptureRequest> requests;
    int scorer = -1, allocator = -1, rule = -1;
  };

  void choose(const PlanInputs& in, KeepPlan& plan) const {
    const Asked asked = this->asked(in.prompt);
    const PartInputs for_scorer = part_inputs(in, asked.scorer), for_allocator = part_inputs(in, asked.allocator);
    SlotScores scores(at(in.slots.n_layers()));
    SlotCounts most(scores.size());
    for_each_head(in.slots, [&](int32_t layer, int32_t head) {
      scores[at(layer)].emplace_back(in.slots.tokens(layer, head).size(), 0.0f);
    });
    parts_.scorer->score(for_scorer, scores);
    for_each_head(in.slots, [&](int32_t layer, int32_t head) {
      most[at(layer)].push_back(mask(in, layer, head, scores[at(layer)][at(head)]));
    });
    const SlotCounts counts = count(for_allocator, scores, most);
    plan.layers.resize(scores.size());
    for_each_head(in.slots, [&](int32_t layer, int32_t head) {
      const int32_t n_keep = counts[at(layer)][at(head)];
      KeepPlan::Head& kept = plan.layers[at(layer)].emplace_back();
      kept.keep =
          select_slots(scores[at(layer)][at(head)], n_keep,
                       parts_.scorer->protects(n_keep, share(in.prompt), in.prompt).in_head(in.slots, layer, head));
    });
    if (n_planes() > 0) begin_rule(part_inputs(in, asked.rule), plan);
  }

  void begin_rule(const PartInputs& in, KeepPlan& plan) const {
    std::vector<float> values;
    for_each_head(in.slots, [&](int32_t layer, int32_t head) {
      KeepPlan::Head& kept = plan.layers[at(layer)][at(head)];
      values.assign(in.slots.tokens(layer, head).size(), 0.0f);
      rule()->begin(in, layer, head, values);
      for (const int32_t slot : kept.keep) kept.planes.push_back(values[at(slot)]);
    });
  }

  Asked asked(const PromptShape& prompt) const {
    Asked all;
    const auto add = [&](CaptureRequest request) {
      if (!request.any()) return -1;
      request.window = std::min(request.window, prompt.n_tokens);
      return static_cast<int>(join(all.requests, request));
    };
    all.scorer = add(parts_.scorer->needs(prompt));
    if (parts_.allocator != nullptr) all.allocator = add(parts_.allocator->needs(prompt));
    if (rule() != nullptr) all.rule = add(rule()->needs(prompt));
    return all;
  }

  PartInputs part_inputs(const PlanInputs& in, int index) const {
    PartInputs part{.slots = in.slots, .tokens = in.tokens, .prompt = in.prompt, .capture = {}, .isa = in.isa};
    if (index < 0) return part;
    const Capture& capture = *in.captures[static_cast<size_t>(index)];
    if (!capture.problem.empty()) throw Error(ErrorCode::kInput, "KV policy " + parts_.name + " " + capture.problem);
    part.capture = capture.layers;
    return part;
  }

  // Sets scores to -inf for slots that no later query can see: hidden ones, and slots that a sliding window has passed.
  // Returns the number of the others, whose scores are finite.
  static int32_t mask(const PlanInputs& in, int32_t layer, int32_t head, std::span<float> scores) {
    const std::vector<int32_t> lasting = lasting_slots(in.slots, layer, head);
    auto next = lasting.begin();
    for (size_t i = 0; i < scores.size(); ++i) {
      if (next == lasting.end() || at(*next) != i) {
        scores[i] = kGone;
        continue;
      }
      if (!std::isfinite(scores[i])) scores[i] = std::numeric_limits<float>::lowest();
      ++next;
    }
    return static_cast<int32_t>(std::ssize(lasting));
  }

  // The budget as a share of the prompt's slots, for kinds that define one; else 0.
  double share(const PromptShape& prompt) const {
    if (parts_.budget.kind == KvBudget::Kind::kRatio) return parts_.budget.value;
    if (parts_.budget.kind == KvBudget::Kind::kSlots) return std::min(1.0, parts_.budget.value / prompt.n_tokens);
    return 0;
  }

  SlotCounts count(const PartInputs& part, const SlotScores& scores, const SlotCounts& most) const {
    const int32_t n = part.prompt.n_tokens;
    const auto allocate = [&](int32_t n_slots, double share) {
      return parts_.allocator->allocate({.part = part,
                                         .scorer = *parts_.scorer,
                                         .scores = scores,
                                         .most = most,
                                         .share = share,
                                         .n_slots = n_slots,
                                         .error = parts_.budget.value});
    };
    const auto share_of = [&](int32_t n_slots) { return static_cast<double>(n_slots) / n; };
    switch (parts_.budget.kind) {
      case KvBudget::Kind::kThreshold:
        return above_threshold(part, scores, most);
      case KvBudget::Kind::kBytes:
        return within_bytes(part, most, allocate, share_of);
      case KvBudget::Kind::kError:
        return allocate(0, 0);
      case KvBudget::Kind::kRatio:
        return allocate(slots_of(parts_.budget.value, n, parts_.scorer->rounding()), parts_.budget.value);
      case KvBudget::Kind::kSlots:
        break;
    }
    return allocate(static_cast<int32_t>(std::min<double>(parts_.budget.value, n)), share(part.prompt));
  }

  SlotCounts above_threshold(const PartInputs& part, const SlotScores& scores, const SlotCounts& most) const {
    SlotCounts counts = most;
    for_each_head(part.slots, [&](int32_t layer, int32_t head) {
      const auto reaches = [&](float score) { return score >= static_cast<float>(parts_.budget.value); };
      int32_t& count = counts[at(layer)][at(head)];
      const auto n = static_cast<int32_t>(std::ranges::count_if(scores[at(layer)][at(head)], reaches));
      count = std::clamp(n, std::min(count, 1), count);
    });
    return counts;
  }

  // The largest budget whose pages fit.
  SlotCounts within_bytes(const PartInputs& part, const SlotCounts& most, const auto& allocate,
                          const auto& share_of) const {
    const auto bytes = [&](const SlotCounts& counts) {
      int64_t sum = 0;
      for_each_head(part.slots, [&](int32_t layer, int32_t head) {
        sum += part.slots.kept_bytes(layer, head, counts[at(layer)][at(head)]);
      });
      return static_cast<double>(sum);
    };
    check_bytes(part.slots);
    const double limit = parts_.budget.value;
    if (bytes(most) <= limit) return most;
    int32_t low = 1, high = part.prompt.n_tokens;  // low fits: one slot each, or about that
    while (low + 1 < high) {
      const int32_t middle = low + (high - low) / 2;
      (bytes(allocate(middle, share_of(middle))) <= limit ? low : high) = middle;
    }
    SlotCounts counts = allocate(low, share_of(low));
    if (bytes(counts) > limit) {  // a preset with a floor of its own
      throw Error(ErrorCode::kInput, "KV budget: " + parts_.name + " keeps " +
                                         std::to_string(static_cast<int64_t>(bytes(counts))) +
                                         " bytes of this prompt at least, more than the " +
                                         std::to_string(static_cast<int64_t>(limit)) + " allowed");
    }
    return counts;
  }

  EvictionParts parts_;
};

}  // namespace

void TokenScorer::score(const PartInputs& in, SlotScores& scores) const {
  for_each_head(in.slots,
                [&](int32_t layer, int32_t head) { score_head(in, layer, head, scores[at(layer)][at(head)]); });
}

Protected TokenScorer::protects(int32_t n_keep, double, const PromptShape&) const {
  return {.n_first = 0, .n_last = recent_slots(n_keep)};
}

int32_t recent_slots(int32_t n_keep) { return std::min(n_keep, slots_of(kRecentShare, n_keep)); }

SlotCounts deal_to_layers(const AllocateInputs& in, std::span<const double> shares, int32_t least) {
  const PolicySlots& slots = in.part.slots;
  SlotCounts counts = in.most;
  std::vector<double> unit_shares;
  std::vector<int32_t> unit_least, unit_most;
  // Whole layers are dealt to if that comes out even: all have as many heads, and these as many slots.
  int32_t n_layers = 0, heads = 0;
  bool even = true;
  for (int32_t layer = 0; layer < slots.n_layers(); ++layer) {
    const std::vector<int32_t>& most = in.most[at(layer)];
    if (most.empty()) continue;
    ++n_layers;
    if (heads == 0) heads = static_cast<int32_t>(most.size());
    even = even && static_cast<int32_t>(most.size()) == heads && std::ranges::count(most, most[0]) == heads;
  }
  for_each_head(slots, [&](int32_t layer, int32_t head) {
    if (even && head > 0) return;
    unit_shares.push_back(shares[at(layer)]);
    unit_least.push_back(least);
    unit_most.push_back(in.most[at(layer)][at(head)]);
  });
  const int64_t total = int64_t{in.n_slots} * (even ? n_layers : n_heads(slots));
  const std::vector<int32_t> dealt = deal(unit_shares, unit_least, unit_most, total);
  size_t unit = 0;
  for (std::vector<int32_t>& layer : counts) {
    for (size_t head = 0; head < layer.size(); ++head) {
      layer[head] = dealt[unit];
      if (!even || head + 1 == layer.size()) ++unit;
    }
  }
  return counts;
}

int32_t post_vision_window(const PromptShape& prompt) {
  constexpr int32_t kAtImageEnd = 16, kOfText = 64;
  int32_t window = prompt.n_after_vision;
  if (prompt.n_vision == 0) window = kOfText;
  if (window == 0) window = kAtImageEnd;
  return std::min(window, prompt.n_tokens);
}

PolicyPtr eviction_policy(EvictionParts parts, std::unique_ptr<const DecodeRule> rule) {
  return std::make_shared<EvictionPolicy>(std::move(parts), std::move(rule));
}

}  // namespace vlcache
