// Attention over pages against naive loops in double: shapes, masks, codecs, instruction sets.
#include "ops/cpu/attention/attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <random>

#include "ops/cpu/attention/attention_check_test_util.h"

namespace vlcache::cpu {
namespace {

using testing::check_stats;
using testing::Expected;
using testing::reference;
using testing::TestCase;
using testing::TestData;

class AttentionTest : public ::testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    if (detect_isa() < GetParam()) GTEST_SKIP() << "this CPU has no " << isa_name(GetParam());
    workspace = std::make_unique<AttentionWorkspace>(GetParam(), has_byte_dots(GetParam()));
  }
  void check(const TestCase& c) { testing::check(c, *workspace); }
  std::unique_ptr<AttentionWorkspace> workspace;
};

TEST_P(AttentionTest, HeadSizesAndGroups) {
  for (int d : {8, 32, 48, 64, 72, 80, 96, 112, 128}) {
    for (int group : {1, 3, 4, 7, 8}) check({.d = d, .group = group, .n_rows = 3, .n_slots = 130});
    check({.d = d, .group = 2, .n_rows = 3, .n_slots = 130, .codec = KvCodec::kF32, .compute = DType::kF32});
    // Strips of few rows, and a last slot without its pair.
    for (int group : {1, 2, 3, 5}) check({.d = d, .group = group, .n_rows = 1, .n_slots = 127});
    check({.d = d, .group = 1, .n_rows = 1, .n_slots = 127, .codec = KvCodec::kF32, .compute = DType::kF32});
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

TEST_P(AttentionTest, SinkLogits) {
  for (int n_slots : {0, 1, 130, 5000}) {
    for (int n_rows : {1, 3, 40}) {
      check({.group = 3, .n_rows = n_rows, .n_slots = n_slots, .sink_logits = true});
      check({.n_rows = n_rows, .n_slots = n_slots, .window = 90, .n_sinks = 4, .hidden = true, .sink_logits = true});
    }
    check({.n_rows = 17, .n_slots = n_slots, .sink_logits = true, .codec = KvCodec::kF32, .compute = DType::kF32});
  }
  for (AttentionStats::Rule rule : {AttentionStats::Rule::kRowMax, AttentionStats::Rule::kUniform}) {
    for (int n_rows : {1, 60}) {
      check_stats({.group = 3, .n_rows = n_rows, .n_slots = 700, .sink_logits = true}, rule, *workspace);
    }
  }
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
  for (int x = 0; x < c.d; ++x) EXPECT_NEAR(data.out_value(static_cast<size_t>(x)), data.v_row(0, 3, 100)[x], 1e-2);
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
