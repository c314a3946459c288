#include "analysis/statistics.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

namespace vlcache {
namespace {

constexpr int kResamples = 2000;
constexpr double kTail = 0.025;

// The interval of `value(sum of scores, sum of others)` over resamples of pairs.
Interval bootstrap(std::span<const double> scores, std::span<const double> others, uint64_t seed, auto value) {
  if (scores.empty()) return {};
  std::mt19937_64 random(seed);
  std::vector<double> values(kResamples);
  for (double& v : values) {
    double a = 0, b = 0;
    for (size_t i = 0; i < scores.size(); ++i) {
      const size_t pick = random() % scores.size();  // the bias of so small a modulus is negligible
      a += scores[pick];
      if (!others.empty()) b += others[pick];
    }
    v = value(a / static_cast<double>(scores.size()), b / static_cast<double>(scores.size()));
  }
  std::ranges::sort(values);
  const auto at = [&](double share) { return values[static_cast<size_t>(share * (kResamples - 1) + 0.5)]; };
  return {at(kTail), at(1 - kTail)};
}

}  // namespace

double mean(std::span<const double> scores) {
  return scores.empty() ? 0 : std::accumulate(scores.begin(), scores.end(), 0.0) / static_cast<double>(scores.size());
}

Interval mean_interval(std::span<const double> scores, uint64_t seed) {
  return bootstrap(scores, {}, seed, [](double a, double) { return a; });
}

Interval ratio_interval(std::span<const double> scores, std::span<const double> others, uint64_t seed) {
  return bootstrap(scores, others, seed, [](double a, double b) { return b > 0 ? a / b : 1.0; });
}

}  // namespace vlcache
