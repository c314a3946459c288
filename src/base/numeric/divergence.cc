// Sums in double.
#include "base/numeric/divergence.h"

#include <algorithm>
#include <cmath>

namespace vlcache {

int32_t likeliest(std::span<const float> logits) {
  return static_cast<int32_t>(std::ranges::max_element(logits) - logits.begin());
}

void log_softmax(std::span<float> logits) {
  const float top = *std::ranges::max_element(logits);
  double sum = 0;
  for (const float x : logits) sum += std::exp(static_cast<double>(x - top));
  const auto lse = static_cast<float>(top + std::log(sum));
  for (float& x : logits) x -= lse;
}

double divergence(std::span<const float> p, std::span<const float> q) {
  double kl = 0;
  for (size_t i = 0; i < p.size(); ++i) kl += std::exp(static_cast<double>(p[i])) * (p[i] - q[i]);
  return std::max(0.0, kl);
}

}  // namespace vlcache
