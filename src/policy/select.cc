// Choosing slots by score, and the policy that does it behind a prompt.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "policy/parts.h"

namespace vlcache {
namespace {

constexpr double kRecentShare = 0.1;  // of a head's slots: the protocol that the VL-Cache paper compares all methods by

int32_t at_least_one(double x) { return static_cast<int32_t>(std::max(1.0, std::floor(x + 0.5))); }

class EvictionPolicy final : public Policy {
 public:
  EvictionPolicy(std::unique_ptr<const TokenScorer> scorer, std::unique_ptr<const BudgetAllocator> allocator,
                 const KvBudget& budget)
      : scorer_(std::move(scorer)), allocator_(std::move(allocator)), budget_(budget) {}

  std::string name() const override { return std::string(scorer_->name()) + "+" + std::string(allocator_->name()); }
  CaptureRequest needs(const PromptShape& prompt) const override { return scorer_->needs(prompt); }

  bool plan(const PlanInputs& in, KeepPlan& plan) const override {
    const int32_t mean = budget_.n_slots > 0
                             ? static_cast<int32_t>(std::min<int64_t>(budget_.n_slots, in.prompt.n_tokens))
                             : at_least_one(budget_.ratio * in.prompt.n_tokens);
    const SlotBudget budget = allocator_->allocate(in, mean);
    std::vector<float> scores;
    for (int32_t layer = 0; layer < in.slots.n_layers(); ++layer) {
      std::vector<KeepPlan::Head>& heads = plan.layers.emplace_back();
      for (int32_t head = 0; head < in.slots.n_kv_heads(layer); ++head) {
        const int32_t n_keep = budget[static_cast<size_t>(layer)][static_cast<size_t>(head)];
        scores.resize(in.slots.tokens(layer, head).size());
        scorer_->score(in, layer, head, scores);
        heads.push_back(
            {.keep = select_slots(scores, in.slots.bias(layer, head), n_keep, at_least_one(kRecentShare * n_keep)),
             .merges = {},
             .slot_bias = {}});
      }
    }
    return true;
  }

 private:
  std::unique_ptr<const TokenScorer> scorer_;
  std::unique_ptr<const BudgetAllocator> allocator_;
  KvBudget budget_;
};

}  // namespace

std::vector<int32_t> select_slots(std::span<const float> scores, std::span<const float> bias, int32_t n_keep,
                                  int32_t n_recent) {
  std::vector<int32_t> slots;
  for (size_t i = 0; i < scores.size(); ++i) {
    if (bias.empty() || std::isfinite(bias[i])) slots.push_back(static_cast<int32_t>(i));
  }
  const auto n = static_cast<int32_t>(slots.size());
  if (n_keep >= n) return slots;
  CHECK(0 <= n_recent && n_recent <= n_keep);
  const auto chosen = slots.begin() + (n_keep - n_recent), recent = slots.end() - n_recent;
  std::nth_element(slots.begin(), chosen, recent, [&](int32_t a, int32_t b) {
    const float x = scores[static_cast<size_t>(a)], y = scores[static_cast<size_t>(b)];
    return x != y ? x > y : a > b;
  });
  slots.erase(chosen, recent);
  std::ranges::sort(slots);
  return slots;
}

void max_pool(std::span<float> scores, int32_t kernel) {
  CHECK(kernel % 2 == 1);
  const std::vector<float> from(scores.begin(), scores.end());
  const auto n = static_cast<int64_t>(from.size());
  for (int64_t i = 0; i < n; ++i) {
    const int64_t begin = std::max<int64_t>(0, i - kernel / 2), end = std::min(n, i + kernel / 2 + 1);
    scores[static_cast<size_t>(i)] = *std::max_element(from.begin() + begin, from.begin() + end);
  }
}

PolicyPtr eviction_policy(std::unique_ptr<const TokenScorer> scorer, std::unique_ptr<const BudgetAllocator> allocator,
                          const KvBudget& budget) {
  return std::make_shared<EvictionPolicy>(std::move(scorer), std::move(allocator), budget);
}

}  // namespace vlcache
