// Checks attention and its statistics against naive loops in double over what pages hold.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "ops/cpu/attention/attention.h"
#include "ops/cpu/attention/attention_test_util.h"

namespace vlcache::cpu::testing {

// Weights and outputs of the rows of one case, in double, from what the pages really hold.
struct Expected {
  std::vector<double> out;      // [n, H, d]
  std::vector<double> lse;      // [n, H]
  std::vector<double> logits;   // [n, H, slots], -inf where not seen
  std::vector<double> weights;  // [n, H, slots], -1 where not seen
};

inline Expected reference(const TestData& data) {
  const TestCase& c = data.c;
  Expected e;
  for (int i = 0; i < c.n_rows; ++i) {
    for (int h = 0; h < c.n_heads(); ++h) {
      const int head = h / c.group, n_slots = data.n_slots[static_cast<size_t>(head)];
      std::vector<double> logits(static_cast<size_t>(data.max_slots), -std::numeric_limits<double>::infinity());
      double top = -std::numeric_limits<double>::infinity(), total = 0;
      for (int j = 0; j < n_slots; ++j) {
        if (!data.sees(i, head, j)) continue;
        const float* q = &(c.q_sinks && j < c.n_sinks ? data.q_sinks : data.q)[data.at(i, h, 0)];
        const float* k = data.k_row(head, j, data.limit(static_cast<size_t>(i), static_cast<size_t>(h)));
        double dot = 0;
        for (int x = 0; x < c.d; ++x) dot += double{q[x]} * k[x];
        logits[static_cast<size_t>(j)] = dot * c.scale() + (c.bias ? data.bias[data.slot_at(head, j)] : 0.0f);
        top = std::max(top, logits[static_cast<size_t>(j)]);
      }
      e.logits.insert(e.logits.end(), logits.begin(), logits.end());
      if (c.sink_logits) {
        const double sink = data.sink_logits[static_cast<size_t>(h)];
        top = std::max(top, sink);
        total = top > -1e300 ? std::exp(sink - top) : 0.0;
      }
      for (double& l : logits) total += top > -1e300 ? std::exp(l - top) : 0.0;
      for (int j = 0; j < data.max_slots; ++j) {
        const bool seen = j < n_slots && data.sees(i, head, j);
        e.weights.push_back(!seen ? -1.0 : total > 0 ? std::exp(logits[static_cast<size_t>(j)] - top) / total : 0.0);
      }
      const double* w = &e.weights[e.weights.size() - static_cast<size_t>(data.max_slots)];
      std::vector<double> sum(static_cast<size_t>(c.d));
      for (int j = 0; j < n_slots; ++j) {
        const float* v = data.v_row(head, j, data.limit(static_cast<size_t>(i), static_cast<size_t>(h)));
        for (int x = 0; x < c.d && w[j] > 0; ++x) sum[static_cast<size_t>(x)] += w[j] * v[x];
      }
      e.out.insert(e.out.end(), sum.begin(), sum.end());
      e.lse.push_back(total > 0 ? top + std::log(total) : -std::numeric_limits<double>::infinity());
    }
  }
  return e;
}

// bf16: weights and result are rounded to 8 bits, and values are below 2. f32: a logit of size l is off by up to l
// 2^-22, the exponential by 2e-7, and sums are of up to some thousand terms.
inline double out_tolerance(const TestCase& c) { return c.compute == DType::kBF16 ? 1.2e-2 : 2e-5 * c.q_scale; }
// Coded pages in bf16 compute: q is rounded to 15 bits of its row's largest value, of many rows perhaps to bf16 after
// its rotation: 2^-9 of each of d products of about 1.3, times the scale d^-0.5, adds up to 2e-3 at random, and some of
// thousands of logits lie at four times that.
inline bool has_codes(const TestCase& c) { return c.blocks || is_coded(c.codec); }
inline double lse_tolerance(const TestCase& c) {
  if (has_codes(c) && c.compute == DType::kBF16) return (c.n_rows * c.group > 24 ? 1.2e-2 : 1e-3) * c.q_scale;
  return 2e-5 * c.q_scale;
}

inline void check_logits(const TestData& data, const Expected& e, const std::vector<float>& found) {
  for (int h = 0; h < data.c.n_heads(); ++h) {
    for (int j = 0; j < data.max_slots; ++j) {
      const size_t i = static_cast<size_t>(h * data.max_slots + j);
      if (j >= data.n_slots[static_cast<size_t>(h / data.c.group)]) {
        ASSERT_EQ(found[i], 7.0f) << "written beyond the slots: head " << h << " slot " << j;
      } else if (std::isinf(e.logits[i])) {
        ASSERT_EQ(found[i], e.logits[i]) << "head " << h << " slot " << j;
      } else {
        ASSERT_NEAR(found[i], e.logits[i], lse_tolerance(data.c)) << "head " << h << " slot " << j;
      }
    }
  }
}

inline void check(const TestCase& c, AttentionWorkspace& workspace) {
  SCOPED_TRACE(c.describe());
  TestData data(c);
  const Expected e = reference(data);
  std::vector<float> logits(static_cast<size_t>(c.n_heads() * data.max_slots), 7.0f);
  AttentionSeq seq{0, c.n_rows, data.view()};
  if (c.scattered) seq.n_after = data.n_after.data();
  if (c.n_rows == 1) seq.logits = logits.data(), seq.logits_stride = data.max_slots;
  attention(workspace, data.q_tensor(), {&seq, 1}, data.args(), data.out_tensor());
  if (c.n_rows == 1) check_logits(data, e, logits);
  double worst = 0, worst_lse = 0;
  for (size_t i = 0; i < e.out.size(); ++i) worst = std::max(worst, std::fabs(e.out[i] - data.out_value(i)));
  for (size_t i = 0; i < e.lse.size(); ++i) {
    if (std::isinf(e.lse[i])) {
      EXPECT_EQ(data.lse[i], e.lse[i]);
    } else {
      worst_lse = std::max(worst_lse, std::fabs(e.lse[i] - data.lse[i]));
    }
  }
  EXPECT_LE(worst, out_tolerance(c));  // NaN fails too
  for (size_t i = 0; i < e.out.size(); ++i) ASSERT_TRUE(std::isfinite(data.out_value(i)));
  EXPECT_LE(worst_lse, lse_tolerance(c));
}

inline void check_stats(const TestCase& c, AttentionStats::Rule rule, AttentionWorkspace& workspace) {
  SCOPED_TRACE(c.describe());
  TestData data(c);
  const Expected e = reference(data);
  const size_t n = static_cast<size_t>(c.n_heads() * data.max_slots);
  std::vector<float> sums(n, 1.0f), band(n, 1.0f), most(n, 0.01f), below(n, 2.0f), seen(n, 3.0f), weights;
  for (int i = 0; i < c.n_rows; ++i) weights.push_back(0.25f * static_cast<float>(i % 5));
  const auto tensor = [&](std::vector<float>& x) {
    return Tensor(x.data(), DType::kF32, {c.n_heads(), data.max_slots});
  };
  AttentionStats stats{.rule = rule, .threshold = 0.3f, .band = c.n_slots / 3};
  stats.column_sums = tensor(sums), stats.band_sums = tensor(band), stats.column_max = tensor(most);
  stats.below_counts = tensor(below), stats.seen_counts = tensor(seen);
  if (c.scattered) stats.n_after = data.n_after.data();
  if (c.scattered) stats.row_weight = weights.data();
  AttentionArgs args = data.args();
  args.lse = Tensor();
  attention_stats(workspace, data.q_tensor(), data.view(), args, stats);
  std::vector<double> want_sums(n, 1.0), want_band(n, 1.0), want_most(n, 0.01), want_below(n, 2.0), want_seen(n, 3.0);
  const double relative = has_codes(c) && c.compute == DType::kBF16 ? 2e-3 : 1e-4;
  std::vector<double> unsure(n, 0.0);  // weights too close to the limit to call
  const auto n_heads = static_cast<size_t>(c.n_heads());
  for (size_t row = 0; row < e.lse.size(); ++row) {
    const double* w = &e.weights[row * static_cast<size_t>(data.max_slots)];
    const double largest = *std::max_element(w, w + data.max_slots);
    const double n_seen = static_cast<double>(std::count_if(w, w + data.max_slots, [](double x) { return x >= 0; }));
    const double limit = rule == AttentionStats::Rule::kRowMax ? double{stats.threshold} * largest : 1.0 / n_seen;
    for (int j = 0; j < data.max_slots; ++j) {
      const size_t at =
          (row % static_cast<size_t>(c.n_heads())) * static_cast<size_t>(data.max_slots) + static_cast<size_t>(j);
      if (w[j] < 0) continue;
      const double weighted = w[j] * (c.scattered ? weights[row / static_cast<size_t>(c.n_heads())] : 1.0f);
      want_sums[at] += weighted;
      if (j >= data.limit(row / n_heads, row % n_heads) - stats.band) want_band[at] += weighted;
      want_most[at] = std::max(want_most[at], w[j]);
      want_below[at] += w[j] < limit ? 1 : 0;
      want_seen[at] += 1;
      unsure[at] += std::fabs(w[j] - limit) < relative * limit ? 1 : 0;
    }
  }
  for (size_t i = 0; i < n; ++i) {
    ASSERT_NEAR(sums[i], want_sums[i], relative * (1 + want_sums[i])) << i;
    ASSERT_NEAR(band[i], want_band[i], relative * (1 + want_band[i])) << i;
    ASSERT_NEAR(most[i], want_most[i], 0.1 * relative) << i;
    ASSERT_NEAR(below[i], want_below[i], unsure[i]) << i;
    ASSERT_EQ(seen[i], want_seen[i]) << i;
  }
}

}  // namespace vlcache::cpu::testing
