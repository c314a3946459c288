// Every kernel fits as well as the plain one, on odd shapes.
#include "policy/attention_fit/fit_head.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "ops/factory.h"

namespace vlcache {
namespace {

constexpr int64_t kHeadDim = 24;

std::vector<float> random_numbers(int64_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<float> numbers(static_cast<size_t>(n));
  for (float& x : numbers) x = static_cast<float>(random() % 2001) / 1000.0f - 1.0f;
  return numbers;
}

// A head's attention output for its queries, over `slots` with these values and biases added.
std::vector<double> output(const FitHead& h, std::span<const int32_t> slots, std::span<const float> values,
                           std::span<const float> bias) {
  std::vector<double> out(static_cast<size_t>(h.n_queries * kHeadDim));
  for (int64_t q = 0; q < h.n_queries; ++q) {
    double sum = h.sinks.empty() ? 0 : std::exp(double{h.sinks[static_cast<size_t>(q)]});
    std::vector<double> row(kHeadDim);
    for (size_t j = 0; j < slots.size(); ++j) {
      const int32_t after = h.query_places[static_cast<size_t>(q)] - h.slot_places[static_cast<size_t>(slots[j])];
      if (after < 0 || (h.window > 0 && after >= h.window)) continue;
      double logit = bias.empty() ? 0 : double{bias[j]};
      for (int64_t c = 0; c < kHeadDim; ++c) logit += h.queries[q * kHeadDim + c] * h.k[slots[j] * kHeadDim + c];
      sum += std::exp(logit);
      for (size_t c = 0; c < kHeadDim; ++c) row[c] += std::exp(logit) * values[j * kHeadDim + c];
    }
    for (size_t c = 0; c < kHeadDim && sum > 0; ++c) out[static_cast<size_t>(q * kHeadDim) + c] = row[c] / sum;
  }
  return out;
}

double distance(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(sum);
}

TEST(FitKernels, AreAsGoodAsThePlainOne) {
  struct Shape {
    int64_t n_slots, n_queries, n_keep;
    bool biased = false;
    int32_t window = 0;
    float sink = 0;  // logit of every other query's sink, if not 0
  };
  for (const Shape& s : {Shape{70, 9, 7},
                         {70, 9, 33},
                         {201, 45, 13},
                         {201, 45, 130},
                         {5, 3, 1},
                         {33, 1, 32},
                         {70, 9, 33, true},
                         {201, 45, 130, false, 64},
                         {201, 45, 130, true, 64},
                         {70, 9, 33, false, 0, 4},
                         {201, 45, 13, true, 64, 7}}) {
    for (const double ridge : {0.3, 1e-6}) {
      const std::vector<float> k = random_numbers(s.n_slots * kHeadDim, 1), v = random_numbers(k.size(), 2),
                               q = random_numbers(s.n_queries * kHeadDim, 3),
                               bias = random_numbers(s.biased ? s.n_slots : 0, 4);
      std::vector<int32_t> slots(static_cast<size_t>(s.n_slots)), queries(static_cast<size_t>(s.n_queries)), keep;
      for (size_t i = 0; i < slots.size(); ++i) slots[i] = static_cast<int32_t>(i);
      for (size_t i = 0; i < queries.size(); ++i) queries[i] = static_cast<int32_t>(s.n_slots - s.n_queries + i);
      for (int64_t i = 0; i < s.n_keep; ++i) keep.push_back(static_cast<int32_t>(i * s.n_slots / s.n_keep));
      std::vector<float> sinks;
      for (int64_t i = 0; i < s.n_queries && s.sink != 0; ++i) {
        sinks.push_back(i % 2 == 0 ? s.sink : -std::numeric_limits<float>::infinity());
      }
      const FitHead h{.n_slots = s.n_slots,
                      .n_queries = s.n_queries,
                      .head_dim = kHeadDim,
                      .k = k.data(),
                      .v = v.data(),
                      .queries = q.data(),
                      .query_places = queries,
                      .slot_places = slots,
                      .bias = bias,
                      .sinks = sinks,
                      .window = s.window};
      const std::vector<double> all = output(h, slots, v, bias);
      std::vector<float> kept_values, kept_bias;
      for (const int32_t slot : keep) {
        kept_values.insert(kept_values.end(), &v[slot * kHeadDim], &v[slot * kHeadDim] + kHeadDim);
        if (s.biased) kept_bias.push_back(bias[static_cast<size_t>(slot)]);
      }
      const double unfitted = distance(output(h, keep, kept_values, kept_bias), all);
      std::vector<FitKernel*> kernels = fit_kernels(make_backend("auto", DType::kF32)->isa());
      std::ranges::reverse(kernels);  // the plain one first
      double plain = 0;
      for (FitKernel* const kernel : kernels) {
        std::vector<float> values(keep.size() * kHeadDim), fitted_bias(keep.size());
        kernel(h, ridge, keep, values, fitted_bias);
        const double error = distance(output(h, keep, values, fitted_bias), all);
        if (kernel == kernels.front()) plain = error;
        EXPECT_LT(error, unfitted) << s.n_keep << " of " << s.n_slots;
        EXPECT_LE(error, 1.001 * plain + 1e-3) << s.n_keep << " of " << s.n_slots << " ridge " << ridge;
      }
    }
  }
}

}  // namespace
}  // namespace vlcache
