// Attention over pages against naive loops in double: shapes, masks, codecs, instruction sets.
#include "ops/cpu/attention/attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <random>

#include "ops/cpu/attention/attention_test_util.h"

namespace vlcache::cpu {
namespace {

using testing::TestCase;
using testing::TestData;

// Weights and outputs of the rows of one case, in double, from what the pages really hold.
struct Expected {
  std::vector<double> out;      // [n, H, d]
  std::vector<double> lse;      // [n, H]
  std::vector<double> logits;   // [n, H, slots], -inf where not seen
  std::vector<double> weights;  // [n, H, slots], -1 where not seen
};

Expected reference(const TestData& data) {
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
        const float* k = data.k_row(head, j);
        double dot = 0;
        for (int x = 0; x < c.d; ++x) dot += double{q[x]} * k[x];
        logits[static_cast<size_t>(j)] = dot * c.scale() + (c.bias ? data.bias[data.slot_at(head, j)] : 0.0f);
        top = std::max(top, logits[static_cast<size_t>(j)]);
      }
      e.logits.insert(e.logits.end(), logits.begin(), logits.end());
      for (double& l : logits) total += top > -1e300 ? std::exp(l - top) : 0.0;
      for (int j = 0; j < data.max_slots; ++j) {
        const bool seen = j < n_slots && data.sees(i, head, j);
        e.weights.push_back(!seen ? -1.0 : total > 0 ? std::exp(logits[static_cast<size_t>(j)] - top) / total : 0.0);
      }
      const double* w = &e.weights[e.weights.size() - static_cast<size_t>(data.max_slots)];
      std::vector<double> sum(static_cast<size_t>(c.d));
      for (int j = 0; j < n_slots; ++j) {
        const float* v = data.v_row(head, j);
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
double out_tolerance(const TestCase& c) { return c.compute == DType::kBF16 ? 1.2e-2 : 2e-5 * c.q_scale; }
double lse_tolerance(const TestCase& c) { return 2e-5 * c.q_scale; }

void check_logits(const TestData& data, const Expected& e, const std::vector<float>& found) {
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

void check(const TestCase& c, AttentionWorkspace& workspace) {
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

class AttentionTest : public ::testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    if (detect_isa() < GetParam()) GTEST_SKIP() << "this CPU has no " << isa_name(GetParam());
    workspace = std::make_unique<AttentionWorkspace>(GetParam());
  }
  void check(const TestCase& c) { cpu::check(c, *workspace); }
  std::unique_ptr<AttentionWorkspace> workspace;
};

TEST_P(AttentionTest, HeadSizesAndGroups) {
  for (int d : {8, 32, 48, 64, 72, 80, 96, 112, 128}) {
    for (int group : {1, 3, 4, 7, 8}) check({.d = d, .group = group, .n_rows = 3, .n_slots = 130});
    check({.d = d, .group = 2, .n_rows = 3, .n_slots = 130, .codec = KvCodec::kF32, .compute = DType::kF32});
  }
}

TEST_P(AttentionTest, RowsAndSlots) {
  for (int n_rows : {1, 2, 17, 81}) {
    for (int n_slots : {0, 1, 63, 64, 65, 130, 987}) {
      check({.d = 32, .group = 3, .n_rows = n_rows, .n_slots = n_slots});
      check(
          {.d = 32, .group = 1, .n_rows = n_rows, .n_slots = n_slots, .codec = KvCodec::kF32, .compute = DType::kF32});
    }
  }
}

TEST_P(AttentionTest, DecodeIsSplitByPages) {
  for (int group : {1, 4, 8}) check({.d = 64, .group = group, .n_rows = 1, .n_slots = 5000, .n_kv_heads = 1});
  check({.d = 80, .group = 7, .n_rows = 2, .n_slots = 4999, .codec = KvCodec::kF32, .compute = DType::kF32});
}

TEST_P(AttentionTest, Windows) {
  for (int window : {1, 63, 64, 100, 2000}) {
    for (int n_sinks : {0, 4, 64, 70}) {
      for (bool positions : {false, true}) {
        check({.n_rows = 17, .n_slots = 400, .window = window, .n_sinks = n_sinks, .slot_pos = positions});
      }
      check({.n_rows = 5, .n_slots = 400, .window = window, .n_sinks = n_sinks, .q_sinks = true, .slot_pos = true});
    }
  }
  check({.n_rows = 1, .n_slots = 6000, .window = 900, .n_sinks = 4});
  check({.n_rows = 2, .n_slots = 6000, .window = 900, .n_sinks = 4, .q_sinks = true, .slot_pos = true});
}

TEST_P(AttentionTest, SinksWithoutAWindow) {
  for (int n_sinks : {1, 64, 100}) check({.n_rows = 9, .n_slots = 150, .n_sinks = n_sinks, .q_sinks = true});
}

TEST_P(AttentionTest, Bias) {
  check({.n_rows = 17, .n_slots = 300, .bias = true});
  check({.n_rows = 1, .n_slots = 3000, .bias = true, .codec = KvCodec::kF32, .compute = DType::kF32});
  check({.n_rows = 3, .n_slots = 300, .window = 50, .n_sinks = 3, .q_sinks = true, .slot_pos = true, .bias = true});
}

// Whole pages of hidden slots hold NaN: they are not read.
TEST_P(AttentionTest, HiddenSlots) {
  for (bool bias : {false, true}) {
    for (int n_rows : {1, 3, 40}) check({.n_rows = n_rows, .n_slots = 300, .bias = bias, .hidden = true});
    check({.n_rows = 1, .n_slots = 6000, .bias = bias, .hidden = true, .codec = KvCodec::kF32, .compute = DType::kF32});
    check({.group = 7, .n_rows = 1, .n_slots = 987, .bias = bias, .hidden = true, .mixed = true, .ragged = true});
    check({.n_rows = 9, .n_slots = 400, .window = 90, .n_sinks = 4, .slot_pos = true, .bias = bias, .hidden = true});
  }
}

TEST_P(AttentionTest, ScatteredRows) {
  for (int n_rows : {1, 2, 17, 130}) {
    check({.n_rows = n_rows, .n_slots = 300, .scattered = true});
    check({.group = 1, .n_rows = n_rows, .n_slots = 100, .scattered = true, .ragged = true});
    check({.n_rows = n_rows, .n_slots = 400, .window = 90, .n_sinks = 4, .scattered = true});
    check({.n_rows = n_rows, .n_slots = 400, .window = 90, .slot_pos = true, .hidden = true, .scattered = true});
  }
}

TEST_P(AttentionTest, LogitsOfOneRow) {
  for (int n_slots : {0, 1, 63, 64, 65, 987, 6000}) {
    check({.group = 3, .n_rows = 1, .n_slots = n_slots, .ragged = true});
    check({.n_rows = 1, .n_slots = n_slots, .window = 700, .n_sinks = 70});
    check({.n_rows = 1, .n_slots = n_slots, .n_sinks = 4, .q_sinks = true, .bias = true, .mixed = true});
  }
  check({.d = 32, .group = 40, .n_rows = 1, .n_slots = 700, .n_kv_heads = 1});  // blocks of several pages and strips
}

TEST_P(AttentionTest, MixedCodecs) {
  for (DType compute : {DType::kBF16, DType::kF32}) {
    check({.n_rows = 1, .n_slots = 987, .mixed = true, .compute = compute});
    check({.n_rows = 17, .n_slots = 987, .bias = true, .mixed = true, .compute = compute});
  }
  check({.n_rows = 3, .n_slots = 200, .codec = KvCodec::kBF16, .compute = DType::kF32});
  check({.n_rows = 3, .n_slots = 200, .codec = KvCodec::kF32, .compute = DType::kBF16});
}

TEST_P(AttentionTest, RaggedHeads) {
  for (int n_rows : {1, 5, 70}) check({.n_rows = n_rows, .n_slots = 300, .n_kv_heads = 3, .ragged = true});
  check({.n_rows = 70, .n_slots = 60, .n_kv_heads = 2, .ragged = true});  // some rows have no slot at all
}

TEST_P(AttentionTest, LargeLogitsDoNotOverflow) {
  check({.n_rows = 7, .n_slots = 500, .q_scale = 60.0f, .codec = KvCodec::kF32, .compute = DType::kF32});
}

TEST_P(AttentionTest, BiasOfMinusInfinityHidesASlot) {
  TestCase c{.n_rows = 1, .n_slots = 100, .n_kv_heads = 1, .bias = true};
  TestData data(c);
  for (float& b : data.bias) b = -std::numeric_limits<float>::infinity();
  const AttentionSeq seq{0, 1, data.view()};
  attention(*workspace, data.q_tensor(), {&seq, 1}, data.args(), data.out_tensor());
  EXPECT_EQ(data.out_value(0), 0.0f);
  EXPECT_EQ(data.lse[0], -std::numeric_limits<float>::infinity());
  data.bias[3] = 0.0f;
  attention(*workspace, data.q_tensor(), {&seq, 1}, data.args(), data.out_tensor());
  for (int x = 0; x < c.d; ++x) EXPECT_NEAR(data.out_value(static_cast<size_t>(x)), data.v_row(0, 3)[x], 1e-2);
}

// Prefill and decode in one batch; rows between them stay as they are.
TEST_P(AttentionTest, MixedBatch) {
  TestData a({.n_rows = 33, .n_slots = 200}), b({.n_rows = 1, .n_slots = 1500, .seed = 2});
  const Expected ea = reference(a), eb = reference(b);
  const int64_t width = a.c.n_heads() * a.c.d, n = 36;
  std::vector<bf16> q(static_cast<size_t>(n * width)), out(q.size(), to_bf16(9.0f));
  std::copy_n(b.q_tensor().as<bf16>(), width, q.data() + width);
  std::copy_n(a.q_tensor().as<bf16>(), 33 * width, q.data() + 3 * width);
  const AttentionSeq seqs[] = {{3, 33, a.view()}, {1, 1, b.view()}};
  const Tensor tq(q.data(), DType::kBF16, {n, a.c.n_heads(), a.c.d}),
      tout(out.data(), DType::kBF16, {n, a.c.n_heads(), a.c.d});
  attention(*workspace, tq, seqs, {.scale = a.c.scale()}, tout);
  for (int64_t i = 0; i < n * width; ++i) {
    const size_t at = static_cast<size_t>(i);
    const int64_t row = i / width;
    const double want = row >= 3   ? ea.out[at - static_cast<size_t>(3 * width)]
                        : row == 1 ? eb.out[at - static_cast<size_t>(width)]
                                   : 9.0;
    ASSERT_NEAR(to_float(out[at]), want, 1.2e-2) << "row " << row;
  }
}

void check_stats(const TestCase& c, AttentionStats::Rule rule, AttentionWorkspace& workspace) {
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
      unsure[at] += std::fabs(w[j] - limit) < 1e-4 * limit ? 1 : 0;
    }
  }
  for (size_t i = 0; i < n; ++i) {
    ASSERT_NEAR(sums[i], want_sums[i], 1e-4 * (1 + want_sums[i])) << i;
    ASSERT_NEAR(band[i], want_band[i], 1e-4 * (1 + want_band[i])) << i;
    ASSERT_NEAR(most[i], want_most[i], 1e-5) << i;
    ASSERT_NEAR(below[i], want_below[i], unsure[i]) << i;
    ASSERT_EQ(seen[i], want_seen[i]) << i;
  }
}

TEST_P(AttentionTest, Statistics) {
  for (AttentionStats::Rule rule : {AttentionStats::Rule::kRowMax, AttentionStats::Rule::kUniform}) {
    for (int n_rows : {1, 7, 64}) {
      for (int n_slots : {1, 65, 987}) {
        check_stats({.n_rows = n_rows, .n_slots = n_slots}, rule, *workspace);
      }
    }
    check_stats({.d = 80, .group = 4, .n_rows = 20, .n_slots = 5000, .n_kv_heads = 1}, rule, *workspace);
    check_stats({.n_rows = 9, .n_slots = 300, .n_kv_heads = 3, .bias = true, .ragged = true}, rule, *workspace);
    check_stats({.n_rows = 9, .n_slots = 300, .codec = KvCodec::kF32, .compute = DType::kF32}, rule, *workspace);
    check_stats({.n_rows = 9, .n_slots = 500, .window = 70, .n_sinks = 4, .slot_pos = true}, rule, *workspace);
    for (int n_rows : {1, 9, 60}) {
      check_stats({.group = 3, .n_rows = n_rows, .n_slots = 700, .window = 300, .hidden = true}, rule, *workspace);
      check_stats({.n_rows = n_rows, .n_slots = 700, .bias = true, .hidden = true, .scattered = true, .ragged = true},
                  rule, *workspace);
    }
  }
}

// The last w rows and the earlier rows, requested separately, add up to all of them; unrequested outputs are left out.
TEST_P(AttentionTest, StatisticsOfSlicesAddUp) {
  constexpr int kRows = 150, kLast = 40;
  TestData data({.group = 3, .n_rows = kRows, .n_slots = 400});
  const size_t n = static_cast<size_t>(data.c.n_heads() * 400);
  std::vector<float> whole(n), parts(n), largest(n), largest_part(n);
  const auto stats_into = [&](std::vector<float>& sums, std::vector<float>& most) {
    AttentionStats stats;
    stats.column_sums = Tensor(sums.data(), DType::kF32, {data.c.n_heads(), 400});
    stats.column_max = Tensor(most.data(), DType::kF32, {data.c.n_heads(), 400});
    return stats;
  };
  const Tensor q = data.q_tensor();
  const AttentionArgs args{.scale = data.c.scale()};
  AttentionStats all = stats_into(whole, largest);
  attention_stats(*workspace, q, data.view(), args, all);
  AttentionStats last = stats_into(parts, largest_part);
  attention_stats(*workspace, q.slice_rows(kRows - kLast, kRows), data.view(), args, last);
  AttentionStats first = last;
  first.n_after = data.n_after.data();
  attention_stats(*workspace, q.slice_rows(0, kRows - kLast), data.view(), args, first);
  for (size_t i = 0; i < n; ++i) {
    ASSERT_NEAR(parts[i], whole[i], 1e-5 * (1 + whole[i])) << i;
    ASSERT_NEAR(largest_part[i], largest[i], 1e-6) << i;
  }
}

TEST_P(AttentionTest, Dense) {
  for (DType dtype : {DType::kBF16, DType::kF32}) {
    for (int d : {16, 64, 72}) {
      const int sizes[] = {1, 577, 64, 130}, heads = 3;
      std::vector<int32_t> offsets{0};
      for (int n : sizes) offsets.push_back(offsets.back() + n);
      const int64_t n = offsets.back(), width = heads * d;
      std::mt19937 rng(5);
      testing::Rows q(n, width, dtype, rng), k(n, width, dtype, rng), v(n, width, dtype, rng),
          out(n, width, dtype, rng);
      const auto tensor = [&](testing::Rows& r) { return Tensor(r.bytes.data(), dtype, {n, heads, d}); };
      std::vector<float> probs(static_cast<size_t>(n * heads), 7.0f);
      const float scale = 1.0f / std::sqrt(static_cast<float>(d));
      dense_attention(
          *workspace, {tensor(q), tensor(k), tensor(v), tensor(out)},
          {.scale = scale, .offsets = offsets, .first_row_probs = Tensor(probs.data(), DType::kF32, {n, heads})});
      for (size_t image = 0; image + 1 < offsets.size(); ++image) {
        const int begin = offsets[image], end = offsets[image + 1];
        for (int i = begin; i < end; i += std::max(1, (end - begin) / 5)) {
          for (int h = 0; h < heads; ++h) {
            std::vector<double> w;
            double total = 0;
            for (int j = begin; j < end; ++j) {
              double dot = 0;
              for (int x = 0; x < d; ++x) dot += double{q.value(i, h * d + x)} * k.value(j, h * d + x);
              w.push_back(std::exp(dot * scale));
              total += w.back();
            }
            for (int x = 0; x < d; ++x) {
              double sum = 0;
              for (int j = begin; j < end; ++j)
                sum += w[static_cast<size_t>(j - begin)] / total * v.value(j, h * d + x);
              ASSERT_NEAR(out.value(i, h * d + x), sum, dtype == DType::kBF16 ? 1.2e-2 : 1e-5)
                  << i << " " << h << " " << x;
            }
            for (int j = begin; j < end && i == begin; ++j) {
              ASSERT_NEAR(probs[static_cast<size_t>(j * heads + h)], w[static_cast<size_t>(j - begin)] / total, 2e-6);
            }
          }
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, AttentionTest,
                         ::testing::Values(Isa::kScalar, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16, Isa::kAmxBf16),
                         [](const auto& info) { return std::string(isa_name(info.param)); });

// Attention over two halves, joined, is attention over all; a half without slots changes nothing.
TEST(MergeAttention, JoinsHalves) {
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    std::mt19937 rng(3);
    const int n = 19, heads = 3, d = 72;
    testing::Rows a(n, heads * d, dtype, rng), b(n, heads * d, dtype, rng), o(n, heads * d, dtype, rng);
    std::vector<float> la(n * heads), lb(la.size()), lo(la.size());
    std::uniform_real_distribution<float> uniform(-3, 3);
    for (size_t i = 0; i < la.size(); ++i) la[i] = uniform(rng), lb[i] = uniform(rng) * 20;
    lb[0] = la[1] = la[2] = lb[2] = -std::numeric_limits<float>::infinity();
    const auto values = [&](testing::Rows& r) { return Tensor(r.bytes.data(), dtype, {n, heads, d}); };
    const auto logs = [&](std::vector<float>& x) { return Tensor(x.data(), DType::kF32, {n, heads}); };
    merge_attention({values(a), logs(la)}, {values(b), logs(lb)}, {values(o), logs(lo)});
    for (int i = 0; i < n * heads; ++i) {
      const size_t at = static_cast<size_t>(i);
      const double ea = std::exp(double{la[at]}), eb = std::exp(double{lb[at]});
      if (ea + eb == 0) {
        EXPECT_EQ(lo[at], -std::numeric_limits<float>::infinity());
        EXPECT_EQ(o.value(i / heads, i % heads * d), 0.0f);
        continue;
      }
      EXPECT_NEAR(lo[at], std::log(ea + eb), 1e-5 * (1 + std::fabs(lo[at])));
      for (int x = i % heads * d; x < (i % heads + 1) * d; ++x) {
        const double want = (ea * a.value(i / heads, x) + eb * b.value(i / heads, x)) / (ea + eb);
        ASSERT_NEAR(o.value(i / heads, x), want, dtype == DType::kF32 ? 1e-5 : 8e-3);
      }
    }
    // In place.
    merge_attention({values(a), logs(la)}, {values(b), logs(lb)}, {values(a), logs(la)});
    EXPECT_EQ(a.bytes, o.bytes);
    EXPECT_EQ(la, lo);
  }
}

}  // namespace
}  // namespace vlcache::cpu
