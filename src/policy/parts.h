// The parts that an evicting policy is made of: a scorer ranks slots, an allocator says how many stay.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "policy/policy.h"

namespace vlcache {

// Ranks the slots of a layer. Stateless.
class TokenScorer {
 public:
  virtual ~TokenScorer() = default;
  virtual std::string_view name() const = 0;
  virtual CaptureRequest needs(const PromptShape& prompt) const = 0;
  // scores[i]: of slot i of kv head `head`, larger = keep.
  virtual void score(const PlanInputs& in, int32_t layer, int32_t head, std::span<float> scores) const = 0;
};

// How much may stay, as the user said it.
struct KvBudget {
  double ratio = 0;     // of the prompt's slots, (0, 1]; or
  int64_t n_slots = 0;  // mean slots per (layer, kv head), if > 0
};

// Slots per (layer, kv head): [n_layers][n_kv_heads].
using SlotBudget = std::vector<std::vector<int32_t>>;

class BudgetAllocator {
 public:
  virtual ~BudgetAllocator() = default;
  virtual std::string_view name() const = 0;
  // Spreads a mean of `n_slots` per (layer, kv head) over the model.
  virtual SlotBudget allocate(const PlanInputs& in, int32_t n_slots) const = 0;
};

// The slots that stay, ascending: of those not hidden the last n_recent, and the best of the others until there are
// n_keep. Equal scores: the later slot first. `bias` may be empty (nothing hidden).
std::vector<int32_t> select_slots(std::span<const float> scores, std::span<const float> bias, int32_t n_keep,
                                  int32_t n_recent);

// scores[i] = the largest of scores[i - kernel / 2 .. i + kernel / 2]; kernel odd.
void max_pool(std::span<float> scores, int32_t kernel);

// Keeps the best slots of a prompt by `scorer`, as many as `allocator` and `budget` say; the recent tenth of a head's
// slots always stays (docs/methods.md, budgets).
PolicyPtr eviction_policy(std::unique_ptr<const TokenScorer> scorer, std::unique_ptr<const BudgetAllocator> allocator,
                          const KvBudget& budget);

}  // namespace vlcache
