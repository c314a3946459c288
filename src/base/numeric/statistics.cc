#include "base/numeric/statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace vlcache {
namespace {

// std::lgamma writes a global, which threads share.
double log_gamma(double x) {
  int sign = 0;
  return lgamma_r(x, &sign);
}

// The continued fraction of I_x(a, b), by the modified method of Lentz (Abramowitz and Stegun 26.5.8); converges fast
// for x < (a + 1) / (a + b + 2).
double beta_fraction(double x, double a, double b) {
  constexpr double kTiny = 1e-300;
  constexpr int kMaxTerms = 20000;  // of the order of sqrt(max(a, b))
  const auto away_from_zero = [](double v) { return std::abs(v) < kTiny ? kTiny : v; };
  double c = 1, d = 1 / away_from_zero(1 - (a + b) * x / (a + 1));
  double fraction = d;
  for (int m = 1; m <= kMaxTerms; ++m) {
    double last_factor = 1;
    for (const double term : {m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
                              -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))}) {
      d = 1 / away_from_zero(1 + term * d);
      c = away_from_zero(1 + term / c);
      last_factor = d * c;
      fraction *= last_factor;
    }
    if (std::abs(last_factor - 1) < std::numeric_limits<double>::epsilon()) break;
  }
  return fraction;
}

// The x in [low, high] at which `rises`, which is false below it and true above, changes.
double bisect(double low, double high, auto rises) {
  constexpr int kHalvings = 200;  // ends when low and high are neighbours
  for (int i = 0; i < kHalvings; ++i) {
    const double middle = 0.5 * (low + high);
    if (middle <= low || middle >= high) break;
    (rises(middle) ? high : low) = middle;
  }
  return high;
}

// Tango's score of the difference `delta` of two paired probabilities: normal under that difference.
double paired_score(double n_gained, double n_lost, double n, double delta) {
  const double a = 2 * n, b = -n_gained - n_lost + (2 * n - n_gained + n_lost) * delta;
  const double c = -n_lost * delta * (1 - delta);
  const double lost = (std::sqrt(std::max(0.0, b * b - 4 * a * c)) - b) / (2 * a);  // its likeliest share under delta
  const double variance = n * (2 * lost + delta * (1 - delta));
  const double distance = n_gained - n_lost - n * delta;
  return variance > 0 ? distance / std::sqrt(variance) : std::copysign(std::numeric_limits<double>::max(), distance);
}

}  // namespace

double mean(std::span<const double> scores) {
  return scores.empty() ? 0 : std::accumulate(scores.begin(), scores.end(), 0.0) / static_cast<double>(scores.size());
}

double quantile(std::span<const float> sorted, double p) {
  if (sorted.empty()) return 0;
  const double place = p * static_cast<double>(sorted.size() - 1);
  const auto below = std::min(static_cast<size_t>(place), sorted.size() - 1);
  const double low = sorted[below], high = sorted[std::min(below + 1, sorted.size() - 1)];
  return low + (place - static_cast<double>(below)) * (high - low);
}

double beta_distribution(double x, double a, double b) {
  if (x <= 0) return 0;
  if (x >= 1) return 1;
  const double log_front = log_gamma(a + b) - log_gamma(a) - log_gamma(b) + a * std::log(x) + b * std::log1p(-x);
  if (x < (a + 1) / (a + b + 2)) return std::exp(log_front) * beta_fraction(x, a, b) / a;
  return 1 - std::exp(log_front) * beta_fraction(1 - x, b, a) / b;
}

double beta_quantile(double p, double a, double b) {
  return bisect(0, 1, [&](double x) { return beta_distribution(x, a, b) >= p; });
}

double share_at_most(double n_hits, double n, double confidence) {
  return n_hits >= n ? 1 : beta_quantile(confidence, n_hits + 1, n - n_hits);
}

double share_at_least(double n_hits, double n, double confidence) {
  return n_hits <= 0 ? 0 : beta_quantile(1 - confidence, n_hits, n - n_hits + 1);
}

double normal_quantile(double p) {
  return bisect(-40, 40, [&](double z) { return std::erfc(-z / std::sqrt(2.0)) / 2 >= p; });
}

double share_at_most_at_any_time(double n_hits, double n, double confidence, double expected) {
  if (n <= 0 || n_hits >= n) return 1;
  const double a = 1, b = 1 / expected, n_others = n - n_hits;
  const auto log_beta = [](double x, double y) { return log_gamma(x) + log_gamma(y) - log_gamma(x + y); };
  const double mixture = log_beta(a + n_hits, b + n_others) - log_beta(a, b);
  return bisect(n_hits / n, 1, [&](double p) {
    const double of_p = (n_hits > 0 ? n_hits * std::log(p) : 0) + n_others * std::log1p(-p);
    return mixture - of_p >= -std::log(1 - confidence);
  });
}

double paired_gain_at_least(double n_gained, double n_lost, double n, double confidence) {
  if (n <= 0) return -1;
  const double z = normal_quantile(confidence);
  return bisect(-1, (n_gained - n_lost) / n,
                [&](double delta) { return paired_score(n_gained, n_lost, n, delta) <= z; });
}

double paired_loss_at_most(double n_gained, double n_lost, double n, double confidence) {
  return std::max(-paired_gain_at_least(n_gained, n_lost, n, confidence), share_at_most(0, n, confidence));
}

}  // namespace vlcache
