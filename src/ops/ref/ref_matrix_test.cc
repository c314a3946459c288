// Reference matmul, embedding, norms, sums and rotation against explicit formulas in double.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <complex>

#include "ops/ref/ref_backend.h"
#include "ops/ref/ref_test_util.h"

namespace vlcache {
namespace {

using ref_test::Matrix;
using ref_test::Seed;
using testing::ElementsAre;
using testing::FloatNear;
using testing::Pointwise;

const std::unique_ptr<Backend> kRefBf16 = make_ref_backend(DType::kBF16);

TEST(RefMatmul, HandComputed) {
  Matrix x({2, 3}, {1, 2, 3, 4, 5, 6}), w1({1, 3}, {1, 0, -1}), w2({1, 3}, {2, 1, 0}), y({2, 2});
  const Weight w = kRef->pack(std::vector<Tensor>{w1.t, w2.t});
  EXPECT_EQ(w.n_out, 2);
  EXPECT_EQ(w.n_in, 3);
  kRef->matmul(x.t, w, y.t);
  EXPECT_THAT(y.data, ElementsAre(-2, 4, -2, 13));
  Matrix bias({2}, {1, -20}), residual({2, 2}, {100, 200, 300, 400});
  kRef->matmul(x.t, w, y.t, {.bias = &bias.t, .act = Activation::kRelu, .residual = &residual.t});
  EXPECT_THAT(y.data, ElementsAre(100, 200, 300, 400));  // all below zero, so relu leaves the residual
  bias.data = {3, 0};
  kRef->matmul(x.t, w, y.t, {.bias = &bias.t, .act = Activation::kRelu, .residual = &y.t});
  EXPECT_THAT(y.data, ElementsAre(101, 204, 301, 413));
}

TEST(RefMatmul, LongSumsAgainstDouble) {
  const int64_t n = 5, n_in = 203, n_out = 37;
  Matrix x({n, n_in}, Seed(1)), w({n_out, n_in}, Seed(2)), y({n, n_out});
  kRef->matmul(x.t, kRef->pack(std::span(&w.t, 1)), y.t);
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t o = 0; o < n_out; ++o) {
      double expected = 0.0;
      for (int64_t c = 0; c < n_in; ++c) expected += static_cast<double>(x.at(i * n_in + c)) * w.at(o * n_in + c);
      EXPECT_NEAR(y.at(i * n_out + o), expected, 1e-5);
    }
  }
}

TEST(RefMatmul, Bf16RoundsOnceAndLogitsNotAtAll) {
  const bf16 one = to_bf16(1.0f), small = to_bf16(0x1p-8f);
  std::vector<bf16> x = {one, small}, w = {one, one}, y(1);
  std::vector<float> logits(1);
  const Tensor x_t(x.data(), DType::kBF16, {1, 2}), w_t(w.data(), DType::kBF16, {1, 2});
  const Weight weight = kRefBf16->pack(std::span(&w_t, 1));
  kRefBf16->matmul(x_t, weight, Tensor(logits.data(), DType::kF32, {1, 1}));
  EXPECT_EQ(logits[0], 1.0f + 0x1p-8f);
  kRefBf16->matmul(x_t, weight, Tensor(y.data(), DType::kBF16, {1, 1}));
  EXPECT_EQ(to_float(y[0]), 1.0f);  // a tie goes to the even neighbour
}

TEST(RefEmbed, PackedAndPlainRowsOfEveryDType) {
  std::vector<uint16_t> halves = {0x3c00, 0x4000, 0xc000, 0x3800};  // 1, 2, -2, 0.5
  const Tensor rows(halves.data(), DType::kF16, {2, 2});
  const Weight plain{.n_out = 2, .n_in = 2, .dtype = DType::kF16, .rows = rows};
  const Weight packed = kRef->pack(std::span(&rows, 1));
  const std::vector<int32_t> ids = {1, 0, 1};
  for (const Weight* w : {&plain, &packed}) {
    Matrix y({3, 2});
    kRef->embed(ids, *w, y.t);
    EXPECT_THAT(y.data, ElementsAre(-2, 0.5, 1, 2, -2, 0.5));
  }
}

TEST(RefNorm, AgainstDouble) {
  const int64_t n = 3, hidden = 37;
  Matrix x({n, hidden}, Seed(3)), w({hidden}, Seed(4)), b({hidden}, Seed(5)), rms({n, hidden}), layer({n, hidden});
  kRef->rms_norm(x.t, w.t, 1e-6f, rms.t);
  kRef->layer_norm(x.t, w.t, b.t, 1e-6f, layer.t);
  for (int64_t i = 0; i < n; ++i) {
    double sum = 0.0, squares = 0.0;
    for (int64_t j = 0; j < hidden; ++j) sum += x.at(i * hidden + j), squares += std::pow(x.at(i * hidden + j), 2);
    const double mean = sum / hidden, mean_square = squares / hidden;
    for (int64_t j = 0; j < hidden; ++j) {
      const double v = x.at(i * hidden + j);
      EXPECT_NEAR(rms.at(i * hidden + j), v / std::sqrt(mean_square + 1e-6) * w.at(j), 1e-5);
      const double normed = (v - mean) / std::sqrt(mean_square - mean * mean + 1e-6);
      EXPECT_NEAR(layer.at(i * hidden + j), normed * w.at(j) + b.at(j), 1e-5);
    }
  }
}

TEST(RefNorm, PerHeadNormsEachHeadByItself) {
  Matrix x({1, 2, 2}, {3, 3, 0.5, -0.5}), w({2}, {1, 10}), y({1, 2, 2});
  kRef->rms_norm(x.t, w.t, 0.0f, y.t);
  EXPECT_THAT(y.data, Pointwise(FloatNear(1e-6f), {1.0f, 10.0f, 1.0f, -10.0f}));
}

TEST(RefNorm, Bf16RoundsBeforeTheProduct) {
  // 5 and 1: mean square 13, normalised 1.38675 and 0.27735, in bf16 1.390625 and 0.27734375; times 7, in bf16 again.
  // Rounded only once they would be 9.6875 and 1.9453125.
  std::vector<bf16> x = {to_bf16(5.0f), to_bf16(1.0f)}, w = {to_bf16(7.0f), to_bf16(7.0f)};
  const Tensor t(x.data(), DType::kBF16, {1, 2});
  kRefBf16->rms_norm(t, Tensor(w.data(), DType::kBF16, {2}), 0.0f, t);
  EXPECT_EQ(to_float(x[0]), 9.75f);
  EXPECT_EQ(to_float(x[1]), 1.9375f);
}

TEST(RefActivations, KnownValues) {
  // Values of the formulas to 7 digits, computed in Python.
  struct Known {
    Activation act;
    float minus_one, half;
  };
  for (const Known& k :
       {Known{Activation::kSilu, -0.2689414f, 0.3112297f}, Known{Activation::kGelu, -0.1586553f, 0.3457312f},
        Known{Activation::kGeluTanh, -0.1588080f, 0.3457140f}, Known{Activation::kQuickGelu, -0.1542042f, 0.3503884f},
        Known{Activation::kRelu, 0.0f, 0.5f}, Known{Activation::kNone, -1.0f, 0.5f}}) {
    Matrix x({1, 2}, {-1, 0.5}), y({1, 2});
    kRef->activate(x.t, k.act, y.t);
    EXPECT_THAT(y.data, Pointwise(FloatNear(1e-6f), {k.minus_one, k.half}));
    Matrix gate_up({1, 4}, {-1, 0.5, 10, -2});
    kRef->gated_act(gate_up.t, k.act, y.t);
    EXPECT_THAT(y.data, Pointwise(FloatNear(1e-5f), {10 * k.minus_one, -2 * k.half}));
  }
}

TEST(RefRows, SumsAndCopies) {
  Matrix a({3, 2}, {1, 2, 3, 4, 5, 6}), one({1, 2}, {10, 20}), y({3, 2});
  kRef->add(a.t, one.t, y.t);
  EXPECT_THAT(y.data, ElementsAre(11, 22, 13, 24, 15, 26));
  kRef->add(a.t, y.t, y.t);
  EXPECT_THAT(y.data, ElementsAre(12, 24, 16, 28, 20, 32));
  const std::vector<int32_t> rows = {2, 0, 2};
  kRef->gather_rows(a.t, rows, y.t);
  EXPECT_THAT(y.data, ElementsAre(5, 6, 1, 2, 5, 6));
  kRef->scatter_rows(one.t, std::vector<int32_t>{1}, y.t);
  EXPECT_THAT(y.data, ElementsAre(5, 6, 10, 20, 5, 6));
}

// e^0 : e^1 : e^2 : e^2 : e^0, of which 2 and 3 are equal: the lower number comes first.
TEST(RefExperts, TheLargestSharesAreChosenAndCombined) {
  Matrix logits({2, 5}, {0, 1, 2, 2, 0, 1, 1, 1, 1, 1}), weights({2, 3});
  std::vector<int32_t> ids(6);
  kRef->route(logits.t, Tensor(ids.data(), DType::kI32, {2, 3}), weights.t);
  EXPECT_THAT(ids, ElementsAre(2, 3, 1, 0, 1, 2));
  const float e = std::exp(1.0f), sum = 2 * e + 1;
  EXPECT_THAT(weights.data, Pointwise(FloatNear(1e-6f), {e / sum, e / sum, 1 / sum, 1 / 3.0f, 1 / 3.0f, 1 / 3.0f}));
  Matrix x({2, 2}, {1, 2, 3, 4}), rows({3, 2}, {10, 20, 30, 40, 50, 60}), share({2, 2}, {0.5, 2, 1, -1});
  std::vector<int32_t> at = {2, 0, 1, 1};
  kRef->combine_rows(x.t, rows.t, Tensor(at.data(), DType::kI32, {2, 2}), share.t, x.t);
  EXPECT_THAT(x.data, ElementsAre(1 + 25 + 20, 2 + 30 + 40, 3, 4));
}

TEST(RefConvert, RoundsToNearestEven) {
  Matrix x({1, 3}, {1.0f + 0x1p-8f, 1.0f + 0x1.8p-7f, -3.0f});
  std::vector<bf16> y(3);
  kRef->convert(x.t, Tensor(y.data(), DType::kBF16, {1, 3}));
  EXPECT_EQ(to_float(y[0]), 1.0f);
  EXPECT_EQ(to_float(y[1]), 1.0f + 0x1p-6f);
  EXPECT_EQ(to_float(y[2]), -3.0f);
}

// Pair (c, c + d/2) is the complex number x[c] + i x[c + d/2], turned by the angle of the table.
TEST(RefRope, IsAComplexRotation) {
  const int64_t n = 3, n_heads = 2, d = 6, half = d / 2;
  Matrix x({n, n_heads, d}, Seed(6)), angle({n, half}, Seed(7)), cos({n, half}), sin({n, half}), y({n, n_heads, d});
  for (size_t i = 0; i < angle.data.size(); ++i) {
    cos.data[i] = std::cos(angle.data[i]);
    sin.data[i] = std::sin(angle.data[i]);
  }
  kRef->rope(x.t, cos.t, sin.t, y.t);
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t h = 0; h < n_heads; ++h) {
      for (int64_t c = 0; c < half; ++c) {
        const int64_t at = (i * n_heads + h) * d + c;
        const std::complex<double> z(x.at(at), x.at(at + half));
        const std::complex<double> turned = z * std::polar(1.0, static_cast<double>(angle.at(i * half + c)));
        EXPECT_NEAR(y.at(at), turned.real(), 1e-6);
        EXPECT_NEAR(y.at(at + half), turned.imag(), 1e-6);
      }
    }
  }
}

// patchify, then matmul with the flattened kernel, is a convolution of stride p.
TEST(RefPatchify, IsAConvolution) {
  const int64_t n_images = 2, channels = 3, height = 7, width = 9, p = 3, n_out = 4;
  Matrix pixels({n_images, channels, height, width}, Seed(8)), kernel({n_out, channels * p * p}, Seed(9));
  const int64_t n_y = height / p, n_x = width / p, n = n_images * n_y * n_x;
  Matrix rows({n, channels * p * p}), y({n, n_out});
  kRef->patchify(pixels.t, p, rows.t);
  kRef->matmul(rows.t, kRef->pack(std::span(&kernel.t, 1)), y.t);
  for (int64_t r = 0; r < n; ++r) {
    const int64_t image = r / (n_y * n_x), top = r / n_x % n_y * p, left = r % n_x * p;
    for (int64_t o = 0; o < n_out; ++o) {
      double expected = 0.0;
      for (int64_t c = 0; c < channels; ++c) {
        for (int64_t dy = 0; dy < p; ++dy) {
          for (int64_t dx = 0; dx < p; ++dx) {
            expected += static_cast<double>(kernel.at(((o * channels + c) * p + dy) * p + dx)) *
                        pixels.at(((image * channels + c) * height + top + dy) * width + left + dx);
          }
        }
      }
      EXPECT_NEAR(y.at(r * n_out + o), expected, 1e-5);
    }
  }
}

}  // namespace
}  // namespace vlcache
