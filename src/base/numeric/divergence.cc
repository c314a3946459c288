// Sums in double.
#include "base/numeric/divergence.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "base/numeric/statistics.h"

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

TokenDistribution::TokenDistribution(std::span<const float> logits) : log_p(logits.begin(), logits.end()) {
  if (!std::ranges::all_of(logits, [](float x) { return std::isfinite(x); })) {
    throw Error(ErrorCode::kInput, "the model computed logits that are not finite (NaN or infinity)");
  }
  likeliest = vlcache::likeliest(logits);
  log_softmax(log_p);
}

void TokenDivergences::add(const TokenDistribution& p, const TokenDistribution& q) {
  kl.push_back(static_cast<float>(divergence(p.log_p, q.log_p)));
  n_same_top += p.likeliest == q.likeliest ? 1 : 0;
}

DivergenceFigures figures(TokenDivergences divergences) {
  std::vector<float>& kl = divergences.kl;
  if (kl.empty()) return {};
  std::ranges::sort(kl);
  const auto n = static_cast<double>(kl.size());
  return {.n_tokens = std::ssize(kl),
          .mean = std::accumulate(kl.begin(), kl.end(), 0.0) / n,
          .median = quantile(kl, 0.5),
          .p999 = quantile(kl, 0.999),
          .same_top = static_cast<double>(divergences.n_same_top) / n};
}

}  // namespace vlcache
