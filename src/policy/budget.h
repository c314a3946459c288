// KvBudget: how much KV may stay, and deal(), which distributes it over layers and heads.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace vlcache {

// A budget as the user gave it.
struct KvBudget {
  enum class Kind : uint8_t {
    kRatio,      // of the prompt's slots, (0, 1]
    kSlots,      // mean slots per (layer, kv head)
    kBytes,      // of the sequence's pages
    kError,      // mean attention mass that is lost, (0, 1)
    kThreshold,  // every slot whose score is at least this
  };
  Kind kind = Kind::kRatio;
  double value = 0.1;

  // "0.1", "10%", "200", "512MiB", "error=0.05", "threshold=0.001". Throws Error(kInput) that states the expected form.
  static KvBudget parse(std::string_view text);
};

// How a budget of fewer than 16 slots or 1 % of the prompt was understood, and what to expect; "": there is nothing to
// say. n_prompt: tokens of the prompt; 0: not known yet. Throws as KvBudget::parse does.
std::string small_budget_note(std::string_view text, int32_t n_prompt);

// How a share of n slots becomes a number of slots, at least 1. kvpress keeps int(n (1 - r)), where r = 1 - share is
// removed, in double; KVCache-Factory rounds halves to even.
enum class Rounding : uint8_t { kNearest, kDown, kKvpress, kHalfEven };
int32_t slots_of(double share, int32_t n, Rounding rounding = Rounding::kNearest);

// The slots that a share of a prompt of n tokens, or a number of slots, amounts to; at most n. Other kinds count no
// tokens: CHECK.
int32_t tokens_of(const KvBudget& budget, int32_t n);

// Deals out `total` (as far as the limits allow) exactly in proportion to `shares` >= 0: least[i] <= result[i] <=
// most[i]; slots clipped from one are given to the others (water-filling), fractions to the largest remainders, the
// earlier first.
std::vector<int32_t> deal(std::span<const double> shares, std::span<const int32_t> least, std::span<const int32_t> most,
                          int64_t total);

}  // namespace vlcache
