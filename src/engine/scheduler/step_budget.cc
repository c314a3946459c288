#include "engine/scheduler/step_budget.h"

#include <algorithm>

namespace vlcache {
namespace {

// Weight of a new value: one interrupted step does not count for much, and a change is learnt soon.
constexpr double kWeight = 0.13;

// Of the values that are set; of two the smaller.
double median(std::array<double, 3> values) {
  std::ranges::sort(values);
  return values[1] > 0 ? values[1] : values[2];
}

}  // namespace

std::optional<double> StepBudget::prompt_ms(int n_prompts) const {
  if (decode_ms_ == 0) return std::nullopt;
  const double n = n_prompts;
  if (max_ms_ == 0) return decode_ms_ * std::min(kTimeForOne * n * n, kMostTime);
  return std::max(0.0, max_ms_ - decode_ms_);
}

std::optional<double> StepBudget::prompt_flops(int n_prompts) const {
  if (ms_per_flop_ == 0) return std::nullopt;
  return prompt_ms(n_prompts).value_or(std::max(0.0, max_ms_)) / ms_per_flop_;
}

void StepBudget::took(bool decodes, double prompt_flops, double ms) {
  if (prompt_flops == 0) {
    if (decodes) {
      std::rotate(alone_ms_.begin(), alone_ms_.begin() + 1, alone_ms_.end());
      alone_ms_.back() = ms;
      decode_ms_ = median(alone_ms_);
    }
    n_mixed_ = 0;
    return;
  }
  if (decodes) ++n_mixed_;
  // A mixed step that took no longer than decoding alone leaves no rest to divide by.
  constexpr double kLeast = 0.05;
  const double rest = decodes ? std::max(ms - decode_ms_, kLeast * ms) : ms;
  const double price = rest / prompt_flops;
  ms_per_flop_ = ms_per_flop_ == 0 ? price : ms_per_flop_ + kWeight * (price - ms_per_flop_);
}

}  // namespace vlcache
