// Two running means.
#include "engine/step_budget.h"

#include <algorithm>

namespace vlcache {
namespace {

// Of a new value: a step that was interrupted does not count for much, and what has changed is known soon. Of steps
// that decode alone there are few while a prompt is computed.
constexpr double kWeight = 0.13, kWeightAlone = 0.3;

void mix(double& mean, double value, double weight) { mean = mean == 0 ? value : mean + weight * (value - mean); }

}  // namespace

std::optional<double> StepBudget::prompt_ms() const {
  if (decode_ms_ == 0) return std::nullopt;
  const double ms = max_ms_ > 0 ? max_ms_ : kSlowdown * decode_ms_;
  return std::max(0.0, ms - decode_ms_);
}

std::optional<double> StepBudget::prompt_flops() const {
  if (ms_per_flop_ == 0) return std::nullopt;
  return prompt_ms().value_or(std::max(0.0, max_ms_)) / ms_per_flop_;
}

void StepBudget::took(bool decodes, double prompt_flops, double ms) {
  if (prompt_flops == 0) {
    if (decodes) mix(decode_ms_, ms, kWeightAlone);
    n_mixed_ = 0;
    return;
  }
  if (decodes) ++n_mixed_;
  // What is left of a step that took no longer than decoding is nothing that can be divided by.
  constexpr double kLeast = 0.05;
  const double rest = decodes ? std::max(ms - decode_ms_, kLeast * ms) : ms;
  mix(ms_per_flop_, rest / prompt_flops, kWeight);
}

}  // namespace vlcache
