// The parts of an evicting policy: a scorer ranks slots, an allocator decides how many stay in each head, a decode rule
// evicts slots while an answer grows.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "policy/budget.h"
#include "policy/policy.h"

namespace vlcache {

// The inputs of a part's decisions.
struct PartInputs {
  const PolicySlots& slots;
  std::span<const TokenInfo> tokens;  // of the sequence
  PromptShape prompt;
  std::span<const LayerCapture> capture;  // [n_layers] the capture that the part's needs() requested
  Isa isa = Isa::kScalar;                 // of the backend
};

// Per (layer, kv head): its slots' scores; larger scores are kept. No heads in a layer without KV of its own.
using SlotScores = std::vector<std::vector<std::vector<float>>>;
// Per (layer, kv head): a number of slots.
using SlotCounts = std::vector<std::vector<int32_t>>;

// Slots of a head that stay whatever their scores, inside its budget: the slots of the sequence's first tokens, as far
// as a later query can see them, and the last ones.
struct Protected {
  int32_t n_first = 0;
  int32_t n_last = 0;
  // The same with n_first as the number of the head's slots: once a window has passed the first tokens, no other slots
  // are protected in their place.
  Protected in_head(const PolicySlots& slots, int32_t layer, int32_t head) const;
};

// Ranks the slots of a prompt. Stateless.
class TokenScorer {
 public:
  virtual ~TokenScorer() = default;
  virtual CaptureRequest needs(const PromptShape& prompt) const {
    static_cast<void>(prompt);
    return {};
  }
  // Fills `scores`, which has a value for every slot.
  virtual void score(const PartInputs& in, SlotScores& scores) const;
  // For scorers that look at one head at a time: scores[i] of slot i.
  virtual void score_head(const PartInputs& in, int32_t layer, int32_t head, std::span<float> scores) const {
    static_cast<void>(in), static_cast<void>(layer), static_cast<void>(head), static_cast<void>(scores);
  }
  // Draft tokens that its needs() request and that are the answer's own (Policy::acts_after_tokens).
  virtual int32_t n_answer_tokens() const { return 0; }
  // Whether it refits: once the kept slots of all kv heads are chosen, it gives those of some heads of a layer, the
  // first of which is `first`, new values and biases, to make up for the evicted ones.
  virtual bool refits() const { return false; }
  virtual void refit(const PartInputs& in, int32_t layer, int32_t first, std::span<KeepPlan::Head> kept) const {
    static_cast<void>(in), static_cast<void>(layer), static_cast<void>(first), static_cast<void>(kept);
  }
  // Protected slots of a head that keeps n_keep, where `share` of the prompt's slots is the model's mean: by default
  // the last tenth of n_keep, as the VL-Cache paper compares all methods. If together they exceed n_keep, the request
  // fails.
  virtual Protected protects(int32_t n_keep, double share, const PromptShape& prompt) const;
  // How the code that a preset mirrors rounds a share of the prompt.
  virtual Rounding rounding() const { return Rounding::kNearest; }
};

// Number of last slots that always stay in a head that keeps n_keep: a tenth of them, at least one.
int32_t recent_slots(int32_t n_keep);

// The inputs of an allocator.
struct AllocateInputs {
  const PartInputs& part;  // its capture: the one that the allocator's needs() requested
  const TokenScorer& scorer;
  const SlotScores& scores;  // -inf: cannot be kept, and costs nothing
  const SlotCounts& most;    // slots that can be kept
  double share;              // of the prompt's slots, over the whole model
  int32_t n_slots;           // the same as a mean per (layer, kv head)
  double error;              // of a budget of that kind, else 0
};

class BudgetAllocator {
 public:
  virtual ~BudgetAllocator() = default;
  virtual CaptureRequest needs(const PromptShape& prompt) const {
    static_cast<void>(prompt);
    return {};
  }
  // Slots that each (layer, kv head) keeps, none more than `most`.
  virtual SlotCounts allocate(const AllocateInputs& in) const = 0;
  // Whether its budget is an error instead of slots.
  virtual bool takes_error() const { return false; }
};

// The query rows that VL-Cache uses: the text after the last image. If there is none, the last 16; without any image,
// SnapKV's window of the last 64. Never more than the prompt has.
int32_t post_vision_window(const PromptShape& prompt);

// A decoded token's attention in a head.
struct DecodedAttention {
  int32_t layer = 0, head = 0;
  int32_t n_generated = 0;          // tokens of the answer so far, this one included
  std::span<const int32_t> tokens;  // [n_slots] the token of each slot
  std::span<float> attention;       // [n_slots] the mean over the kv head's queries; 0 where hidden. May be overwritten
};

// Evicts slots while decoding, so that no head holds more slots than after the prompt (or grows more slowly).
// Stateless: one plane of the cache holds all it must remember of a slot.
class DecodeRule {
 public:
  virtual ~DecodeRule() = default;
  virtual CaptureRequest needs(const PromptShape& prompt) const {
    static_cast<void>(prompt);
    return {};
  }
  // Initial values for the prompt's slots: values [n_slots], zeros when called.
  virtual void begin(const PartInputs& in, int32_t layer, int32_t head, std::span<float> values) const {
    static_cast<void>(in), static_cast<void>(layer), static_cast<void>(head), static_cast<void>(values);
  }
  // Called with every decoded token's attention.
  virtual bool wants_attention() const { return false; }
  virtual void on_attention(const DecodedAttention& decoded, std::span<float> values) const {
    static_cast<void>(decoded), static_cast<void>(values);
  }
  // Called after every step of the answer.
  virtual void on_step(const StepInfo& step, int32_t layer, int32_t head, PolicySlots& slots) const = 0;
  // Whether attention is the mean over all heads of the layer, so that heads that hold the same tokens evict the same
  // ones. A head that does not hold a token pays it no attention.
  virtual bool joins_heads() const { return false; }
};

// Slots of a head that a later query can see, ascending: not hidden ones, nor slots that the layer's sliding window has
// passed.
std::vector<int32_t> lasting_slots(const PolicySlots& slots, int32_t layer, int32_t head);

// Number of leading slots that belong to tokens before `token`; places [n_slots], ascending.
int32_t n_slots_before(std::span<const int32_t> places, int32_t token);
// The first slot of a head that later queries see unless it is hidden: 0 without a window.
int32_t first_in_window(const PolicySlots& slots, int32_t layer, int32_t head);

// A decoded token's attention to n_slots slots, the mean of query heads [first, first + n_heads). In scores.scratch.
std::span<float> mean_attention(const StepScores& scores, int64_t first, int64_t n_heads, size_t n_slots);

// Hides the slots of least value in plane 0 until n_left are visible, or none is left from `begin`, and the beginning
// of the layer's window, to n_slots - n_recent; of equals the earliest.
void hide_until(PolicySlots& slots, int32_t layer, int32_t head, int32_t n_left, int32_t begin, int32_t n_recent);

// Deals out n_slots of all (layer, kv head) together, exactly: to every head of layer l in proportion to shares[l], at
// least `least` if it has as many. Layers without KV of their own are left out.
SlotCounts deal_to_layers(const AllocateInputs& in, std::span<const double> shares, int32_t least = 1);

// The kept slots, ascending: the protected first and last ones (Protected::in_head), and the best of the others until
// there are n_keep. Slots of score -inf never stay. Equal scores: the later slot first. Throws Error(kInput) if n_keep
// is less than the number of protected slots.
std::vector<int32_t> select_slots(std::span<const float> scores, int32_t n_keep, const Protected& kept);

// The slots except slots of score -inf, protected ones first, the first n_ranked in the order in which a growing
// n_keep would keep them.
std::vector<int32_t> ranked_slots(std::span<const float> scores, const Protected& kept,
                                  int64_t n_ranked = std::numeric_limits<int64_t>::max());

// scores[i] = the largest, or the mean with zeros beyond the ends, of scores[i - kernel / 2 .. i + kernel / 2]; kernel
// odd.
void max_pool(std::span<float> scores, int32_t kernel);
void mean_pool(std::span<float> scores, int32_t kernel);

// What the policy text gives a method with a rule of its own, besides its parameters.
struct MethodParts {
  std::optional<KvBudget> budget;          // none: the paper's default
  bool says_rule = false;                  // the text names a rule, or none, in place of the method's own
  std::unique_ptr<const DecodeRule> rule;  // null: none
  std::string rule_name;                   // "/tova", the suffix of the policy's name
};

// Keeps the best slots of a prompt by `scorer`, as many as `allocator` and `budget` allow. `allocator` null: every slot
// whose score reaches the budget's threshold.
struct EvictionParts {
  std::string name;
  std::unique_ptr<const TokenScorer> scorer;
  std::unique_ptr<const BudgetAllocator> allocator;
  KvBudget budget;
};
// `rule` null: generated tokens come on top.
PolicyPtr eviction_policy(EvictionParts parts, std::unique_ptr<const DecodeRule> rule);

}  // namespace vlcache
