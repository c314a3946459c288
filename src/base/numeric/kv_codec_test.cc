#include "base/numeric/kv_codec.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "base/numeric/kv_codec_kernels.h"

namespace vlcache {
namespace {

std::vector<std::byte> encoded(KvCodec codec, const std::vector<float>& x, int64_t n_heads, int64_t d) {
  const int64_t n = std::ssize(x) / (n_heads * d);
  std::vector<std::byte> rows(static_cast<size_t>(n * n_heads * coded_bytes(codec, d)));
  encode_rows(codec, Tensor(const_cast<float*>(x.data()), DType::kF32, {n, n_heads, d}), rows.data());
  return rows;
}

std::vector<float> decoded(KvCodec codec, const std::vector<std::byte>& rows, int64_t n_heads, int64_t d) {
  const int64_t n = std::ssize(rows) / (n_heads * coded_bytes(codec, d));
  std::vector<float> y(static_cast<size_t>(n * n_heads * d), NAN);
  decode_rows(codec, rows.data(), Tensor(y.data(), DType::kF32, {n, n_heads, d}));
  return y;
}

std::vector<float> round_trip(KvCodec codec, const std::vector<float>& x, int64_t n_heads, int64_t d) {
  return decoded(codec, encoded(codec, x, n_heads, d), n_heads, d);
}

std::vector<float> random_values(int64_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x;
  for (int64_t i = 0; i < n; ++i) x.push_back(normal(random) * (i % 13 == 0 ? 20.0f : 1.0f));
  return x;
}

std::vector<int> bytes_of(const std::vector<std::byte>& rows) {
  std::vector<int> bytes;
  for (const std::byte b : rows) bytes.push_back(static_cast<int>(b));
  return bytes;
}

// H (3, 17, -3, 11) / 4 = (7, -7, 3, 0): in int4 a code is worth 1, and codes are these sums.
TEST(KvCodec, Int4MatchesHandComputedCodes) {
  const std::vector<float> x{0.75f, 4.25f, -0.75f, 2.75f};
  const std::vector<std::byte> rows = encoded(KvCodec::kInt4, x, 1, 4);
  EXPECT_EQ(bytes_of(rows), (std::vector<int>{0x80, 0x3f, 0x97, 0x03}));  // 1 in bf16; -7 and 7; 0 and 3
  EXPECT_EQ(decoded(KvCodec::kInt4, rows, 1, 4), x);
}

// Sum and difference of (100, 27) are 127 and 73, a code is worth 1; the other head is all zeros.
TEST(KvCodec, Int8MatchesHandComputedCodes) {
  const std::vector<std::byte> rows = encoded(KvCodec::kInt8, {100, 27, 0, 0}, 2, 2);
  EXPECT_EQ(bytes_of(rows), (std::vector<int>{0x80, 0x3f, 127, 73, 0, 0, 0, 0}));
  EXPECT_EQ(decoded(KvCodec::kInt8, rows, 2, 2), (std::vector<float>{100, 27, 0, 0}));
}

TEST(KvCodec, SizesPerHead) {
  EXPECT_EQ(coded_bytes(KvCodec::kF32, 64), 256);
  EXPECT_EQ(coded_bytes(KvCodec::kBF16, 64), 128);
  EXPECT_EQ(coded_bytes(KvCodec::kInt8, 64), 66);
  EXPECT_EQ(coded_bytes(KvCodec::kInt8, 80), 82);
  EXPECT_EQ(coded_bytes(KvCodec::kInt4, 64), 36);  // two groups of 32
  EXPECT_EQ(coded_bytes(KvCodec::kInt4, 80), 46);  // and one of 16
  EXPECT_EQ(coded_bytes(KvCodec::kInt4, 6), 5);
  EXPECT_EQ(rotation_block(64), 64);
  EXPECT_EQ(rotation_block(80), 16);
  EXPECT_EQ(rotation_block(1024), 256);
}

// A group's largest rotated value, by the formula (H_ij = -1 to the number of bits that i and j share).
double largest_rotated(const float* x, int64_t n) {
  const int64_t block = rotation_block(n);
  double most = 0;
  for (int64_t i = 0; i < n; ++i) {
    double sum = 0;
    for (int64_t j = 0; j < block; ++j) {
      const auto shared = static_cast<uint64_t>(i % block & j);
      sum += (std::popcount(shared) % 2 == 0 ? 1.0 : -1.0) * static_cast<double>(x[i / block * block + j]);
    }
    most = std::max(most, std::abs(sum));
  }
  return most;
}

// A code is half a step off at most, and a value is the mean of its block's codes under signs: half a step off at most,
// too. The step is the largest rotated value over the largest code, 2^-7 more at most for a scale in bf16.
TEST(KvCodec, ErrorIsAtMostHalfAStep) {
  for (const int64_t d : {2, 6, 16, 64, 66, 72, 80, 96, 128, 256, 1024}) {
    for (const KvCodec codec : {KvCodec::kInt8, KvCodec::kInt4}) {
      SCOPED_TRACE(std::string(kv_codec_name(codec)) + " d=" + std::to_string(d));
      const int64_t group = codec == KvCodec::kInt8 ? d : std::min(d, kInt4Group);
      const std::vector<float> x = random_values(5 * 3 * d, 7), y = round_trip(codec, x, 3, d);
      double error = 0, square = 0;
      for (int64_t row = 0; row < 15; ++row) {
        for (int64_t begin = 0; begin < d; begin += group) {
          const int64_t n = std::min(group, d - begin), at = row * d + begin;
          const double step = largest_rotated(&x[static_cast<size_t>(at)], n) / (codec == KvCodec::kInt8 ? 127 : 7);
          for (int64_t i = at; i < at + n; ++i) {
            const double off = std::abs(double{y[static_cast<size_t>(i)]} - double{x[static_cast<size_t>(i)]});
            ASSERT_LE(off, step * (1 + 0x1p-7) / 2 + 1e-5 * step) << row << " " << i;
            error += off * off;
            square += double{x[static_cast<size_t>(i)]} * double{x[static_cast<size_t>(i)]};
          }
        }
      }
      EXPECT_LT(std::sqrt(error / square), codec == KvCodec::kInt8 ? 0.02 : 0.2);
    }
  }
}

// Down to values whose step is the smallest bf16.
TEST(KvCodec, HandlesSmallAndLargeValues) {
  for (const float factor : {1e-44f, 1e-39f, 1e-30f, 1e30f}) {
    std::vector<float> x = random_values(4 * 64, 11);
    for (float& value : x) value *= factor;
    const std::vector<float> y = round_trip(KvCodec::kInt8, x, 1, 64);
    const double most = largest_rotated(x.data(), std::ssize(x));
    for (size_t i = 0; i < x.size(); ++i) ASSERT_NEAR(y[i], x[i], most / 127 + 0x1p-133) << factor << " " << i;
  }
}

TEST(KvCodec, UnquantizedValuesAreUnchanged) {
  std::vector<float> x = random_values(7 * 2 * 6, 3);
  EXPECT_EQ(round_trip(KvCodec::kF32, x, 2, 6), x);
  for (float& value : x) value = to_float(to_bf16(value));
  EXPECT_EQ(round_trip(KvCodec::kBF16, x, 2, 6), x);
}

// Strided rows of bf16 in, bf16 out: the same codes, rounded once.
TEST(KvCodec, ReadsAndWritesBf16) {
  const int64_t n = 9, d = 64;
  std::vector<bf16> wide;
  std::vector<float> x;
  for (const float value : random_values(n * 2 * d, 5)) wide.push_back(to_bf16(value));
  for (int64_t i = 0; i < n * 2 * d; ++i) {
    if (i / d % 2 == 0) x.push_back(to_float(wide[static_cast<size_t>(i)]));
  }
  Tensor rows(wide.data(), DType::kBF16, {n, 1, d});
  rows.stride = 2 * d;
  std::vector<std::byte> codes(static_cast<size_t>(n * coded_bytes(KvCodec::kInt4, d)));
  encode_rows(KvCodec::kInt4, rows, codes.data());
  EXPECT_EQ(codes, encoded(KvCodec::kInt4, x, 1, d));
  std::vector<bf16> y(x.size());
  decode_rows(KvCodec::kInt4, codes.data(), Tensor(y.data(), DType::kBF16, {n, 1, d}));
  const std::vector<float> exact = decoded(KvCodec::kInt4, codes, 1, d);
  for (size_t i = 0; i < y.size(); ++i) ASSERT_EQ(y[i].bits, to_bf16(exact[i]).bits) << i;
}

// A value that is not finite shows: its group is NaN, other groups are unchanged.
TEST(KvCodec, NonFiniteValuesMakeTheirGroupNan) {
  for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<float> x = random_values(3 * 64, 9);
    const std::vector<float> before = round_trip(KvCodec::kInt8, x, 1, 64);
    x[70] = bad;
    const std::vector<float> y = round_trip(KvCodec::kInt8, x, 1, 64);
    for (size_t i = 0; i < y.size(); ++i) {
      ASSERT_EQ(std::isnan(y[i]), i / 64 == 1) << i;
      ASSERT_TRUE(i / 64 == 1 || y[i] == before[i]) << i;
    }
  }
}

// What every CodecKernels must give, bit for bit: stage by stage, value by value.
namespace plain {

void rotate(std::vector<float>& x) {
  const int64_t block = rotation_block(std::ssize(x));
  for (int64_t stride = block / 2; stride > 0; stride /= 2) {
    for (size_t i = 0; i < x.size(); ++i) {
      if ((static_cast<int64_t>(i) & stride) != 0) continue;
      float &a = x[i], &b = x[i + static_cast<size_t>(stride)];
      const float sum = a + b, difference = a - b;
      a = sum, b = difference;
    }
  }
}

std::vector<std::byte> packed(CodeBits bits, bf16 scale, const std::vector<int>& codes) {
  std::vector<std::byte> group{static_cast<std::byte>(scale.bits & 255), static_cast<std::byte>(scale.bits >> 8)};
  for (size_t i = 0; i < codes.size(); i += bits == CodeBits::k8 ? 1 : 2) {
    const int high = bits == CodeBits::k4 && i + 1 < codes.size() ? codes[i + 1] : 0;
    group.push_back(static_cast<std::byte>(bits == CodeBits::k8 ? codes[i] : (codes[i] & 15) | high * 16));
  }
  return group;
}

std::vector<std::byte> encode(CodeBits bits, std::vector<float> x) {
  rotate(x);
  const float top = bits == CodeBits::k8 ? 127 : 7;
  const bool finite = std::ranges::all_of(x, [](float value) { return std::isfinite(value); });
  float most = 0;
  for (const float value : x) most = std::max(most, std::abs(value));
  const bf16 scale =
      finite ? bf16{static_cast<uint16_t>((std::bit_cast<uint32_t>(most / top) + 0xffff) >> 16)} : to_bf16(NAN);
  std::vector<int> codes;
  for (const float value : x) {
    const float code = to_float(scale) > 0 ? std::nearbyint(value / to_float(scale)) : 0;
    codes.push_back(static_cast<int>(std::clamp(code, -top, top)));
  }
  return packed(bits, scale, codes);
}

std::vector<float> decode(bf16 scale, const std::vector<int>& codes) {
  std::vector<float> x(codes.begin(), codes.end());
  rotate(x);
  for (float& value : x) value *= to_float(scale) / static_cast<float>(rotation_block(std::ssize(x)));
  return x;
}

}  // namespace plain

std::vector<std::byte> encoded_by(const CodecKernels& kernels, CodeBits bits, const std::vector<float>& x) {
  const int64_t n = std::ssize(x);
  std::vector<std::byte> group(static_cast<size_t>(2 + (bits == CodeBits::k8 ? n : (n + 1) / 2)), std::byte{0x55});
  kernels.encode(bits, x.data(), n, group.data());
  return group;
}

class KvCodecKernels : public testing::TestWithParam<const CodecKernels*> {
 protected:
  const CodecKernels& kernels = *GetParam();
};

TEST_P(KvCodecKernels, EncodeAsPlainLoops) {
  for (const int64_t n :
       {1, 2, 3, 4, 6, 8, 9, 16, 20, 24, 30, 32, 40, 48, 63, 64, 66, 72, 80, 96, 128, 160, 192, 256, 384, 768, 1024}) {
    for (const int exponent : {0, -150, -146, -140, -133, -130, -126, -105, -98, 30, 96, 104, 119, 124}) {
      std::vector<float> x = random_values(n, static_cast<uint32_t>(n - exponent));
      for (float& value : x) value = std::ldexp(value, exponent);
      for (const CodeBits bits : {CodeBits::k8, CodeBits::k4}) {
        EXPECT_EQ(encoded_by(kernels, bits, x), plain::encode(bits, x)) << n << " values, 2^" << exponent;
      }
    }
    for (const float odd : {0.0f, -0.0f, 1.0f, INFINITY, -INFINITY, NAN, 1e-45f, 3.4e38f}) {
      std::vector<float> x(static_cast<size_t>(n), 0);
      x.back() = odd;
      for (const CodeBits bits : {CodeBits::k8, CodeBits::k4}) {
        EXPECT_EQ(encoded_by(kernels, bits, x), plain::encode(bits, x)) << n << " values, the last " << odd;
      }
    }
  }
}

// The values next to every half of every scale's step, where a quotient that is off by one bit is another code. An odd
// number of values is not rotated.
TEST_P(KvCodecKernels, RoundsAsPlainLoops) {
  for (int mantissa = 0; mantissa < 128; ++mantissa) {
    const float scale = to_float(bf16{static_cast<uint16_t>(0x3f80 | mantissa)});
    for (const CodeBits bits : {CodeBits::k8, CodeBits::k4}) {
      const int top = bits == CodeBits::k8 ? 127 : 7;
      std::vector<float> x{scale * static_cast<float>(top)};
      for (int half = 0; half < top; ++half) {
        const float value = scale * (static_cast<float>(half) + 0.5f);
        for (int off = -3; off <= 3; ++off) {
          x.push_back(std::bit_cast<float>(std::bit_cast<int32_t>(value) + off) * (off % 2 == 0 ? 1.0f : -1.0f));
        }
      }
      if (x.size() % 2 == 0) x.push_back(0);
      ASSERT_LE(std::ssize(x), kMaxCodedHead);
      ASSERT_EQ(encoded_by(kernels, bits, x), plain::encode(bits, x)) << scale;
    }
  }
}

TEST_P(KvCodecKernels, DecodeAsPlainLoops) {
  std::mt19937 random(3);
  for (const int64_t n :
       {1, 2, 3, 4, 6, 8, 9, 16, 20, 24, 30, 32, 40, 48, 63, 64, 66, 72, 80, 96, 128, 160, 192, 256, 384, 768, 1024}) {
    for (const CodeBits bits : {CodeBits::k8, CodeBits::k4}) {
      const int least = bits == CodeBits::k8 ? -128 : -8;
      std::vector<int> codes;
      for (int64_t i = 0; i < n; ++i)
        codes.push_back(least + static_cast<int>(random() % static_cast<uint32_t>(-2 * least)));
      for (const float scale : {0.0f, 1.0f, 0.7f, 1e-39f, 1e37f, NAN}) {
        const bf16 stored = to_bf16(scale);
        std::vector<float> x(static_cast<size_t>(n + 1), 55), expected = plain::decode(stored, codes);
        kernels.decode(bits, plain::packed(bits, stored, codes).data(), n, x.data());
        EXPECT_EQ(x.back(), 55) << "written past the end";
        for (size_t i = 0; i < expected.size(); ++i) {
          if (std::isnan(expected[i])) {
            EXPECT_TRUE(std::isnan(x[i]));
          } else {
            ASSERT_EQ(std::bit_cast<uint32_t>(x[i]), std::bit_cast<uint32_t>(expected[i])) << n << " " << i;
          }
        }
      }
      std::vector<float> x(codes.begin(), codes.end()), expected = x;
      kernels.rotate(x.data(), n, x.data());
      plain::rotate(expected);
      EXPECT_EQ(x, expected);
    }
  }
}

// Every upper half of a float, with lower halves around the middle.
TEST_P(KvCodecKernels, RoundsAsToBf16) {
  std::vector<float> x;
  for (uint32_t high = 0; high < 0x10000; ++high) {
    for (const uint32_t low : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu})
      x.push_back(std::bit_cast<float>(high << 16 | low));
  }
  std::vector<bf16> y(x.size());
  std::vector<float> wide(x.size());
  kernels.round(x.data(), std::ssize(x), y.data());
  kernels.widen(y.data(), std::ssize(y), wide.data());
  for (size_t i = 0; i < x.size(); ++i) {
    ASSERT_EQ(y[i].bits, to_bf16(x[i]).bits) << x[i];
    ASSERT_EQ(std::bit_cast<uint32_t>(wide[i]), uint32_t{y[i].bits} << 16) << x[i];
  }
}

std::vector<const CodecKernels*> every_kernels() {
  std::vector<const CodecKernels*> all;
  for (const CodecKernels& kernels : codec_kernels()) all.push_back(&kernels);
  return all;
}

INSTANTIATE_TEST_SUITE_P(InstructionSets, KvCodecKernels, testing::ValuesIn(every_kernels()),
                         [](const auto& info) { return std::string(info.param->name); });

}  // namespace
}  // namespace vlcache
