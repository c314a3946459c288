// Attention over coded pages against exact sums over the decoded rows: shapes, masks, forms that rows on both sides of
// a switch see, every instruction set.
#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <vector>

#include "base/numeric/kv_codec.h"
#include "ops/cpu/attention/attention_check_test_util.h"
#include "ops/cpu/attention/kernels.h"
#include "ops/cpu/attention/tile.h"

namespace vlcache::cpu {
namespace {

using testing::check_stats;
using testing::TestCase;
using testing::TestData;

struct Level {
  Isa isa;
  bool byte_dots;
};

bool is_here(const Level& level) { return detect_isa() >= level.isa && (!level.byte_dots || has_byte_dots(level.isa)); }

constexpr Level kLevels[] = {{Isa::kScalar, false},    {Isa::kAvx2, false},  {Isa::kAvx2, true},
                             {Isa::kAvx512, false},    {Isa::kAvx512, true}, {Isa::kAvx512Bf16, false},
                             {Isa::kAvx512Bf16, true}, {Isa::kAmxBf16, true}};

class CodedAttentionTest : public ::testing::TestWithParam<Level> {
 protected:
  void SetUp() override {
    if (!is_here(GetParam())) GTEST_SKIP() << "this CPU has no " << isa_name(GetParam().isa);
    workspace = std::make_unique<AttentionWorkspace>(GetParam().isa, GetParam().byte_dots);
  }
  void check(const TestCase& c) { testing::check(c, *workspace); }
  void run(TestData& data) {
    AttentionSeq seq{0, data.c.n_rows, data.view()};
    if (data.c.scattered) seq.n_after = data.n_after.data();
    attention(*workspace, data.q_tensor(), {&seq, 1}, data.args(), data.out_tensor());
  }
  std::unique_ptr<AttentionWorkspace> workspace;
};

TEST_P(CodedAttentionTest, HeadSizesAndGroupsOfInt4) {
  for (KvCodec codec : {KvCodec::kInt4, KvCodec::kK8V4}) {
    for (int d : {8, 24, 32, 64, 72, 80, 96, 128, 256}) {
      for (int group : {1, 3, 8}) {
        if (codec == KvCodec::kK8V4 && group != 3) continue;
        check({.d = d, .group = group, .n_rows = 1, .n_slots = 130 + d / 8, .codec = codec});
      }
      check({.d = d, .group = 3, .n_rows = 9, .n_slots = 200, .n_kv_heads = 1, .codec = codec});
      check({.d = d, .n_rows = 3, .n_slots = 90, .codec = codec, .compute = DType::kF32});
    }
    check({.d = 1024, .group = 2, .n_rows = 1, .n_slots = 70, .n_kv_heads = 1, .codec = codec});
    check({.d = 20, .n_rows = 2, .n_slots = 70, .codec = KvCodec::kK8V4});
  }
}

TEST_P(CodedAttentionTest, HeadSizesAndGroups) {
  for (int d : {4, 12, 32, 64, 80, 96, 128, 256}) {
    for (int group : {1, 3, 4, 8})
      check({.d = d, .group = group, .n_rows = 1, .n_slots = 130, .codec = KvCodec::kInt8});
    check({.d = d, .group = 3, .n_rows = 9, .n_slots = 200, .n_kv_heads = 1, .codec = KvCodec::kInt8});
    check({.d = d, .group = 2, .n_rows = 3, .n_slots = 90, .codec = KvCodec::kInt8, .compute = DType::kF32});
  }
  check({.d = 1024, .group = 2, .n_rows = 1, .n_slots = 70, .n_kv_heads = 1, .codec = KvCodec::kInt8});
}

TEST_P(CodedAttentionTest, RowsAndSlots) {
  for (int n_rows : {1, 2, 5, 17, 70}) {
    for (int n_slots : {0, 1, 63, 65, 130, 700}) {
      check({.d = 32, .group = 3, .n_rows = n_rows, .n_slots = n_slots, .codec = KvCodec::kInt8});
      if (n_slots % 2 == 1) check({.d = 32, .group = 3, .n_rows = n_rows, .n_slots = n_slots, .codec = KvCodec::kInt4});
    }
  }
}

// Values and codes in one sequence, in many pieces of work.
TEST_P(CodedAttentionTest, Blocks) {
  for (int group : {1, 4, 8}) {
    check({.group = group, .n_rows = 1, .n_slots = 5000, .n_kv_heads = 1, .blocks = true});
    check({.group = group, .n_rows = 1, .n_slots = 1400, .blocks = true, .ragged = true});
  }
  for (KvCodec coded : {KvCodec::kInt4, KvCodec::kK8V4}) {
    for (int n_rows : {1, 40}) check({.d = 80, .n_rows = n_rows, .n_slots = 1400, .blocks = true, .coded = coded});
  }
  for (DType compute : {DType::kBF16, DType::kF32}) {
    check({.d = 80, .n_rows = 40, .n_slots = 1400, .blocks = true, .compute = compute});
    check({.n_rows = 3, .n_slots = 1400, .blocks = true, .codec = KvCodec::kF32, .compute = compute});
  }
}

// Some rows lie before the slot from which on more pages are codes.
TEST_P(CodedAttentionTest, RowsOnBothSidesOfASwitch) {
  for (DType compute : {DType::kBF16, DType::kF32}) {
    for (int n_slots : {768, 769, 1025, 1030, 1300}) {
      for (int n_rows : {1, 2, 7}) {
        check({.d = 32,
               .group = 1,
               .n_rows = n_rows,
               .n_slots = n_slots,
               .blocks = true,
               .born = true,
               .coded = n_rows == 7 ? KvCodec::kInt4 : KvCodec::kInt8,
               .compute = compute});
      }
    }
    check({.d = 16,
           .group = 1,
           .n_rows = 270,
           .n_slots = 1030,
           .n_kv_heads = 1,
           .blocks = true,
           .born = true,
           .compute = compute});
    check({.group = 3,
           .n_rows = 19,
           .n_slots = 1400,
           .scattered = true,
           .blocks = true,
           .born = true,
           .compute = compute});
  }
}

// A row's result is to the bit the same with later rows and without, although these see other forms.
TEST_P(CodedAttentionTest, RowsBesideOthersAreAsAlone) {
  const auto compare = [&](const TestCase& c) {
    TestData data(c);
    run(data);
    const std::vector<bf16> together = data.out_bf16;
    const size_t width = static_cast<size_t>(c.n_heads() * c.d);
    const int n_slots = data.n_slots[0];
    for (int i = 0; i < c.n_rows; ++i) {
      const int32_t n_after = c.n_rows - 1 - i;
      AttentionSeq seq{i, 1, data.view(), &n_after};
      attention(*workspace, data.q_tensor(), {&seq, 1}, {.scale = c.scale()}, data.out_tensor());
      for (size_t x = i * width; x < (i + 1) * width; ++x) {
        ASSERT_EQ(data.out_bf16[x].bits, together[x].bits)
            << c.describe() << " row " << i << " of slot " << n_slots - 1 - n_after;
      }
    }
  };
  for (KvCodec coded : {KvCodec::kInt8, KvCodec::kInt4, KvCodec::kK8V4}) {
    compare({.group = 3, .n_rows = 6, .n_slots = 1027, .blocks = true, .born = true, .coded = coded});
  }
  compare({.group = 8, .n_rows = 3, .n_slots = 1027, .blocks = true, .born = true});
  compare({.d = 72, .group = 8, .n_rows = 3, .n_slots = 203});
}

TEST_P(CodedAttentionTest, WindowsSinksAndBiases) {
  for (int n_rows : {1, 17}) {
    const TestCase plain{.n_rows = n_rows, .n_slots = 1100, .blocks = true, .born = true};
    for (int window : {1, 100, 700}) {
      TestCase c = plain;
      c.window = window, c.n_sinks = 70;
      check(c);
      c.q_sinks = c.slot_pos = true;
      check(c);
    }
    TestCase c = plain;
    c.n_sinks = 100, c.q_sinks = true;
    check(c);
    c.bias = true;
    check(c);
    c.hidden = true;
    check(c);
    c.bias = c.q_sinks = false, c.group = 7, c.ragged = true;
    check(c);
  }
}

TEST_P(CodedAttentionTest, Statistics) {
  for (AttentionStats::Rule rule : {AttentionStats::Rule::kRowMax, AttentionStats::Rule::kUniform}) {
    for (int n_rows : {1, 7, 70}) {
      for (KvCodec codec : {KvCodec::kInt8, KvCodec::kInt4, KvCodec::kK8V4}) {
        check_stats({.n_rows = n_rows, .n_slots = 300, .codec = codec}, rule, *workspace);
      }
      check_stats({.n_rows = n_rows, .n_slots = 1060, .blocks = true, .born = true}, rule, *workspace);
      check_stats({.n_rows = n_rows,
                   .n_slots = 1060,
                   .bias = true,
                   .hidden = true,
                   .scattered = true,
                   .blocks = true,
                   .born = true,
                   .ragged = true,
                   .compute = DType::kF32},
                  rule, *workspace);
    }
  }
}

// Thousands of nearly equal weights, each far below the largest that a block may have.
TEST_P(CodedAttentionTest, LongDiffuseAttention) {
  for (KvCodec codec : {KvCodec::kInt8, KvCodec::kInt4, KvCodec::kK8V4}) {
    TestData data({.n_rows = 1, .n_slots = 8192, .n_kv_heads = 1, .q_scale = 0.02f, .codec = codec});
    const testing::Expected e = testing::reference(data);
    run(data);
    // Weights of 1/8192 to 14 bits, signs at random: the mean of values below 2 is off by far less than its rounding.
    for (size_t i = 0; i < e.out.size(); ++i) ASSERT_NEAR(data.out_value(i), e.out[i], 2e-4) << i;
  }
}

// Slots of a large weight and a small V among thousands of others: weights are whole numbers only after their scales.
TEST_P(CodedAttentionTest, LargeWeightsOfSmallValues) {
  for (KvCodec codec : {KvCodec::kInt8, KvCodec::kInt4}) {
    TestData data({.group = 1, .n_rows = 1, .n_slots = 2048, .n_kv_heads = 1});
    for (int slot = 5; slot < 2048; slot += 64) {
      for (int x = 0; x < data.c.d; ++x) {
        const size_t at = data.row_at(0, slot) + static_cast<size_t>(x);
        data.k[at] = data.q[static_cast<size_t>(x)] * 0.8f;
        data.v[at] *= 1e-4f;
      }
    }
    data.become_codes(codec);
    const testing::Expected e = testing::reference(data);
    run(data);
    double large = 0;
    for (size_t slot = 5; slot < 2048; slot += 64) large += e.weights[slot];
    ASSERT_GT(large, 0.9);
    double most = 0;
    for (const double out : e.out) most = std::max(most, std::fabs(out));
    for (size_t i = 0; i < e.out.size(); ++i) ASSERT_NEAR(data.out_value(i), e.out[i], most / 100) << i;
  }
}

// One slot outweighs thousands.
TEST_P(CodedAttentionTest, Needle) {
  constexpr int kNeedle = 4123;
  TestData data({.group = 1, .n_rows = 1, .n_slots = 8192, .n_kv_heads = 1});
  for (int x = 0; x < data.c.d; ++x) {
    const size_t at = data.row_at(0, kNeedle) + static_cast<size_t>(x);
    data.k[at] = data.q[static_cast<size_t>(x)] * 1.5f;
    data.v[at] = x % 2 == 0 ? 3.0f : -3.0f;
  }
  data.become_codes(KvCodec::kInt8);
  const testing::Expected e = testing::reference(data);
  run(data);
  ASSERT_GT(e.weights[kNeedle], 0.5);
  for (size_t i = 0; i < e.out.size(); ++i) ASSERT_NEAR(data.out_value(i), e.out[i], 1.2e-2) << i;
}

// A slot that is not a number changes no row that does not see it, and no slot beside it.
TEST_P(CodedAttentionTest, ASlotOfNaN) {
  for (KvCodec codec : {KvCodec::kInt8, KvCodec::kInt4, KvCodec::kK8V4}) {
    for (int n_rows : {6, 40}) {
      SCOPED_TRACE(std::string(kv_codec_name(codec)) + " rows " + std::to_string(n_rows));
      TestData data({.group = 1, .n_rows = n_rows, .n_slots = 200, .n_kv_heads = 1, .codec = codec});
      run(data);
      const std::vector<bf16> before = data.out_bf16;
      const int slot = 200 - n_rows / 2;
      std::vector<float> row(static_cast<size_t>(data.c.d), 1.0f);
      row[5] = NAN;
      const Tensor nan(row.data(), DType::kF32, {data.c.d});
      const size_t width = static_cast<size_t>(data.c.d);
      for (const bool v_alone : {true, false}) {
        kv_set(data.view(), 0, slot, v_alone ? Tensor() : nan, nan);
        run(data);
        for (size_t i = 0; i < before.size(); ++i) {
          const bool sees = data.limit(i / width, 0) > slot;
          if (!sees) {
            ASSERT_EQ(data.out_bf16[i].bits, before[i].bits) << "row " << i / width;
          } else if (!v_alone || i % width == 5) {  // of V's other groups of int4, some rows may be numbers
            ASSERT_TRUE(std::isnan(data.out_value(i))) << "row " << i / width;
          }
        }
      }
    }
  }
}

TEST_P(CodedAttentionTest, RowsOfZeros) {
  for (KvCodec codec : {KvCodec::kInt8, KvCodec::kInt4, KvCodec::kK8V4}) {
    for (int n_rows : {1, 40}) {
      TestData data({.n_rows = n_rows, .n_slots = 150, .codec = codec});
      std::fill(data.k.begin(), data.k.end(), 0.0f);
      std::fill(data.v.begin(), data.v.end(), 0.0f);
      std::fill_n(data.q_bf16.begin(), data.c.d, to_bf16(0.0f));
      data.become_codes(codec);
      run(data);
      for (size_t i = 0; i < data.out_bf16.size(); ++i) ASSERT_EQ(data.out_value(i), 0.0f) << i;
      for (int i = 0; i < n_rows; ++i)
        ASSERT_NEAR(data.lse[static_cast<size_t>(i * 4)], std::log(data.limit(i, 0)), 1e-5);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, CodedAttentionTest, ::testing::ValuesIn(kLevels), [](const auto& info) {
  return std::string(isa_name(info.param.isa)) + (info.param.byte_dots ? "_byte_dots" : "");
});

// Scores of m rows over pages of int8 or int4, and what these scores, as weights, make of V, by one level's kernels.
struct KernelResults {
  std::vector<float> s, o;
};
KernelResults run_kernels(const Level& level, TestData& data) {
  const auto codec = static_cast<size_t>(data.c.codec);
  const int m = data.c.group, n = data.c.n_slots, d = data.c.d;
  const AttentionKernels kernels = attention_kernels(level.isa, level.byte_dots);
  const QueryForm form = kernels.query_form[codec];
  const int64_t dp = padded_dim(d), q_stride = query_bytes(form, d);
  const KvView view = data.view();
  const AttentionArgs args = data.args();
  Tile tile{.kv = &view, .args = &args, .group = m, .n_tokens = 1, .n_seen = n};
  tile.place();
  TileScratch scratch;
  const Buffer memory(TileScratch::layout(scratch, nullptr, m, d));
  TileScratch::layout(scratch, memory.data(), m, d);
  pack_queries(tile, kernels, data.q_tensor(), scratch);
  KernelResults results{std::vector<float>(static_cast<size_t>(m * kBlockColumns)),
                        std::vector<float>(static_cast<size_t>(m * dp))};
  for (int row = 0; row < m; row += kernels.strip_rows[codec]) {
    const int rows = std::min(m - row, kernels.strip_rows[codec]);
    float* s = results.s.data() + row * kBlockColumns;
    const std::byte* v[kBlockPages] = {};
    for (int page = 0; page * kPageSlots < n; ++page) {
      const std::byte* k = view.page(0, page);
      v[page] = k + kv_k_bytes(data.c.codec, d);
      kernels.scores[codec]({.q = scratch.q[static_cast<size_t>(form)] + row * q_stride,
                             .q_stride = q_stride,
                             .m = rows,
                             .n = std::min(n - page * kPageSlots, kPageSlots),
                             .k = k,
                             .head_dim = d,
                             .s = s + page * kPageSlots,
                             .s_stride = kBlockColumns});
    }
    std::vector<float> p(static_cast<size_t>(rows * kBlockColumns));
    for (int i = 0; i < rows * kBlockColumns; ++i) {
      if (i % kBlockColumns >= n) s[i] = 0.0f;  // undefined
      p[static_cast<size_t>(i)] = std::fabs(s[i]);
    }
    kernels.values[codec]({.p = reinterpret_cast<const std::byte*>(p.data()),
                           .p_stride = 4 * kBlockColumns,
                           .m = rows,
                           .n = n,
                           .v = v,
                           .padded_dim = static_cast<int>(dp),
                           .o = results.o.data() + row * dp,
                           .o_stride = dp});
  }
  return results;
}

// Sums of whole numbers are the same on every instruction set, and so are scores and values, to the bit.
TEST(CodedKernels, GiveTheSameBitsOnEveryInstructionSetWithAmx) {
  for (KvCodec codec : {KvCodec::kInt8, KvCodec::kInt4}) {
    for (int d : {4, 8, 32, 64, 72, 80, 96, 128, 256, 1024}) {
      if (d == (codec == KvCodec::kInt8 ? 72 : 4)) continue;
      for (int m : {1, 2, 3, 4, 5, 8, 9}) {
        if (d > 128 && m > 1 && m < 8) continue;
        TestData data({.d = d, .group = m, .n_rows = 1, .n_slots = 150 + m, .n_kv_heads = 1, .codec = codec});
        const KernelResults first = run_kernels(kLevels[0], data);
        for (const Level& level : kLevels) {
          if (!is_here(level)) continue;
          SCOPED_TRACE(std::string(isa_name(level.isa)) + (level.byte_dots ? " byte dots " : " ") + data.c.describe());
          const KernelResults results = run_kernels(level, data);
          ASSERT_EQ(results.s, first.s);
          ASSERT_EQ(results.o, first.o);
        }
      }
    }
  }
}

// As rotate_head does it, to the bit.
TEST(CodedKernels, Rotate) {
  std::mt19937 rng(1);
  std::uniform_real_distribution<float> uniform(-3, 3);
  for (KvCodec codec : {KvCodec::kInt8, KvCodec::kInt4}) {
    for (int d : {4, 8, 12, 24, 32, 40, 64, 72, 80, 96, 128, 256, 512}) {
      std::vector<float> x(static_cast<size_t>(d));
      for (float& value : x) value = uniform(rng);
      std::vector<float> want = x;
      rotate_head(codec, want);
      for (const Level& level : kLevels) {
        if (!is_here(level)) continue;
        std::vector<float> y = x;
        const AttentionKernels kernels = attention_kernels(level.isa, level.byte_dots);
        rotate_row(kernels, {codec, false}, d, y.data());
        ASSERT_EQ(y, want) << isa_name(level.isa) << " d " << d;
        rotate_row(kernels, {codec, true}, d, y.data());
        for (size_t i = 0; i < x.size(); ++i) ASSERT_NEAR(y[i], x[i], 1e-5) << isa_name(level.isa) << " d " << d;
      }
    }
  }
}

}  // namespace
}  // namespace vlcache::cpu
