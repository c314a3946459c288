// Rotary embedding against the formula in double.
#include "ops/cpu/rope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "ops/cpu/attention/attention_test_util.h"

namespace vlcache::cpu {
namespace {

class RopeTest : public ::testing::TestWithParam<Isa> {};

TEST_P(RopeTest, RotatesHalves) {
  if (detect_isa() < GetParam()) GTEST_SKIP() << "this CPU has no " << isa_name(GetParam());
  std::mt19937 rng(4);
  std::uniform_real_distribution<float> angle(-3, 3);
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    for (int d : {8, 30, 64, 72, 128}) {
      for (int n : {1, 17, 300}) {
        const int heads = 3, half = d / 2;
        testing::Rows x(n, heads * d, dtype, rng), y(n, heads * d, dtype, rng);
        std::vector<float> cos, sin;
        for (int i = 0; i < n * half; ++i) {
          const float a = angle(rng);
          cos.push_back(std::cos(a)), sin.push_back(std::sin(a));
        }
        const Tensor tx(x.bytes.data(), dtype, {n, heads, d}), ty(y.bytes.data(), dtype, {n, heads, d});
        const Tensor tc(cos.data(), DType::kF32, {n, half}), ts(sin.data(), DType::kF32, {n, half});
        rope(GetParam(), tx, tc, ts, ty);
        // One rounding of a value below 4, half of 2^-6 by bf16's 8 bits, and f32 arithmetic.
        const double tolerance = (dtype == DType::kBF16 ? 1.0 / 128 : 0.0) + 1e-6;
        for (int i = 0; i < n * heads; ++i) {
          const int row = i / heads, at = i % heads * d;
          for (int c = 0; c < half; ++c) {
            const double a = x.value(row, at + c), b = x.value(row, at + half + c);
            const double u = cos[static_cast<size_t>(row * half + c)], v = sin[static_cast<size_t>(row * half + c)];
            ASSERT_NEAR(y.value(row, at + c), a * u - b * v, tolerance);
            ASSERT_NEAR(y.value(row, at + half + c), b * u + a * v, tolerance);
          }
        }
        rope(GetParam(), tx, tc, ts, tx);  // in place
        EXPECT_EQ(x.bytes, y.bytes);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, RopeTest, ::testing::Values(Isa::kScalar, Isa::kAvx2, Isa::kAvx512),
                         [](const auto& info) { return std::string(isa_name(info.param)); });

}  // namespace
}  // namespace vlcache::cpu
