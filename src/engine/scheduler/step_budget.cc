#include "engine/scheduler/step_budget.h"

#include <algorithm>

namespace vlcache {
namespace {

// Weight of a new value: one interrupted step does not count for much, and a change is learnt soon.
constexpr double kWeight = 0.13;

// Of the sizes of pieces, as a share of their mean square, from which on their times tell a fixed cost from one by
// size.
constexpr double kLeastSpread = 0.01;

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
  if (prices_.n == 0) return std::nullopt;
  const double ms = prompt_ms(n_prompts).value_or(std::max(0.0, max_ms_));
  const auto [n, x, y, xx, xy] = prices_;
  const double spread = n * xx - x * x;
  const double slope = spread > 0 ? (n * xy - x * y) / spread : 0, fixed = (y - slope * x) / n;
  // Pieces of about one size tell nothing of others; a line that falls, or begins below zero, is noise.
  const bool is_line = spread > kLeastSpread * x * x && slope > 0 && fixed >= 0;
  // At least half the time goes into FLOPs: a fixed cost beyond that is known from larger pieces only.
  return is_line ? std::max(ms - fixed, ms / 2) / slope : ms / (y / x);
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
  for (double* sum : {&prices_.n, &prices_.x, &prices_.y, &prices_.xx, &prices_.xy}) *sum *= 1 - kWeight;
  prices_.n += 1, prices_.x += prompt_flops, prices_.y += rest;
  prices_.xx += prompt_flops * prompt_flops, prices_.xy += prompt_flops * rest;
}

}  // namespace vlcache
