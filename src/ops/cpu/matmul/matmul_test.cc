// Matrix products on every instruction set, against sums in double; packing and embedding; cases that the op table does
// not reach: capped instruction sets, rows by themselves and with others, activations over their whole range.
#include "ops/cpu/matmul/matmul.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <iterator>
#include <random>
#include <vector>

#include "base/os/threads.h"
#include "ops/cpu/cpu_backend.h"
#include "ops/cpu/matmul/panel_kernel.h"
#include "ops/cpu/packed.h"
#include "ops/cpu/row_ops.h"

namespace vlcache::cpu {
namespace {

// Rows of `width` in [-1, 1), `gap` elements apart, at `offset` bytes into their memory.
struct Rows {
  std::vector<std::byte> memory;
  Tensor view;

  Rows(DType dtype, int64_t n, int64_t width, int64_t gap = 0, size_t offset = 0, uint32_t seed = 1)
      : memory(static_cast<size_t>(n * (width + gap) * dtype_bytes(dtype)) + offset + 64) {
    view = Tensor(memory.data() + offset, dtype, {n, width});
    view.stride = width + gap;
    std::mt19937 random(seed);
    std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
    for (int64_t i = 0; i < n * (width + gap); ++i) set(i, uniform(random));
  }
  void set(int64_t i, float value) {
    if (view.dtype == DType::kF32) std::memcpy(view.data + i * 4, &value, 4);
    const bf16 rounded = to_bf16(value);
    if (view.dtype == DType::kBF16) std::memcpy(view.data + i * 2, &rounded, 2);
  }
};

float value_at(const Tensor& t, int64_t row, int64_t column) {
  const std::byte* at = t.data + (row * t.stride + column) * dtype_bytes(t.dtype);
  if (t.dtype == DType::kF32) {
    float value;
    std::memcpy(&value, at, 4);
    return value;
  }
  bf16 value;
  std::memcpy(&value, at, 2);
  return to_float(value);
}

struct Case {
  DType dtype;
  Isa isa;
};

class OnEveryIsa : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    set_threads(3);
    if (detect_isa(GetParam().isa) != GetParam().isa) GTEST_SKIP() << "this CPU has no " << isa_name(GetParam().isa);
  }
};

double activation(Activation act, double x) {
  switch (act) {
    case Activation::kNone:
      return x;
    case Activation::kSilu:
      return x / (1 + std::exp(-x));
    case Activation::kGelu:
      return 0.5 * x * std::erfc(-x / std::sqrt(2.0));
    case Activation::kGeluTanh: {
      const double u = std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * x * x * x);
      return x / (1 + std::exp(-2 * u));
    }
    case Activation::kQuickGelu:
      return x / (1 + std::exp(-1.702 * x));
    case Activation::kRelu:
      return std::max(0.0, x);
  }
  return x;
}

// y against double sums. Tolerance: one rounding of y, and f32 sums of k products of values up to 1.
void expect_product(const Rows& x, const Tensor& w, const Rows& y, const Epilogue& epilogue,
                    const Rows* residual_before) {
  const double ulp = y.view.dtype == DType::kF32 ? 0x1p-20 : 0x1p-8;
  const int64_t k = w.row_size();
  for (int64_t i = 0; i < y.view.rows(); ++i) {
    for (int64_t o = 0; o<y.view.row_size(); o += y.view.row_size()> 300 ? 37 : 1) {
      double sum = epilogue.bias != nullptr ? value_at(*epilogue.bias, 0, o) : 0.0;
      for (int64_t j = 0; j < k; ++j) sum += static_cast<double>(value_at(x.view, i, j)) * value_at(w, o, j);
      double expected = activation(epilogue.act, sum);
      if (residual_before != nullptr) expected += value_at(residual_before->view, i, o);
      const double error = ulp * std::abs(expected) + 1e-6 * std::sqrt(static_cast<double>(k)) + 1e-6;
      ASSERT_NEAR(value_at(y.view, i, o), expected, error)
          << "row " << i << " output " << o << " of " << y.view.describe() << " k=" << k;
    }
  }
}

TEST_P(OnEveryIsa, MatmulOfOddShapes) {
  const auto [dtype, isa] = GetParam();
  Matmul matmul(isa, dtype);
  for (int64_t n_out : {1, 17, 63, 64, 65, 577}) {
    for (int64_t n_in : {1, 2, 31, 32, 33, 576}) {
      const Rows source(dtype, n_out, n_in, 0, 0, 7);
      const Weight w = pack(isa, dtype, {&source.view, 1});
      for (int64_t rows : {1, 2, 3, 7, 8, 9, 17, 81}) {
        const Rows x(dtype, rows, n_in, rows % 2 * 5), y(dtype, rows, n_out, rows % 2 * 3);
        matmul.run(x.view, w, y.view, {});
        expect_product(x, source.view, y, {}, nullptr);
      }
    }
  }
}

TEST_P(OnEveryIsa, MatmulWithEveryEpilogue) {
  const auto [dtype, isa] = GetParam();
  Matmul matmul(isa, dtype);
  const Rows source(dtype, 130, 70, 0, 0, 7), bias(dtype, 1, 130, 0, 0, 8);
  const Weight w = pack(isa, dtype, {&source.view, 1});
  for (DType out : {dtype, DType::kF32}) {
    for (Activation act : {Activation::kNone, Activation::kSilu, Activation::kGelu, Activation::kGeluTanh,
                           Activation::kQuickGelu, Activation::kRelu}) {
      for (int variant = 0; variant < 12; ++variant) {
        const int64_t rows = variant < 6 ? 5 : 40, gap = variant % 2 * 6;
        const Rows x(dtype, rows, 70, gap, 0, 3), other(out, rows, 130, 2 * gap, 0, 4);
        Rows y(out, rows, 130, gap, 0, 5);
        const Rows before = [&] {
          Rows copy(out, rows, 130, gap, 0, 5);
          return copy;
        }();
        const int residual = variant % 6 / 2;  // none, another tensor, y itself
        const Epilogue e{.bias = variant % 4 < 2 ? &bias.view : nullptr,
                         .act = act,
                         .residual = residual == 0   ? nullptr
                                     : residual == 1 ? &other.view
                                                     : &y.view};
        const Rows* added = residual == 0 ? nullptr : residual == 1 ? &other : &before;
        matmul.run(x.view, w, y.view, e);
        expect_product(x, source.view, y, e, added);
        if (HasFatalFailure()) FAIL() << "activation " << static_cast<int>(act) << " variant " << variant;
      }
    }
  }
}

// What makes "the same result whatever the piece of a prompt" hold: an output is summed in one order, whichever kernel
// the number of rows chooses. On AMX alone, up to kPanelRows rows are summed in another order than more.
TEST_P(OnEveryIsa, ResultOfARowDoesNotDependOnTheNumberOfRows) {
  const auto [dtype, isa] = GetParam();
  const bool on_tiles = isa >= Isa::kAmxBf16;
  Matmul matmul(isa, dtype);
  constexpr int64_t kRows = 400;
  for (const auto& [n_out, n_in] : {std::pair<int64_t, int64_t>{100, 333}, {577, 600}, {33, 1030}, {3, 1}}) {
    const Rows source(dtype, n_out, n_in, 0, 0, 7), bias(dtype, 1, n_out, 0, 0, 8), x(dtype, kRows, n_in, 3);
    const Epilogue e{.bias = &bias.view, .act = Activation::kGelu};
    const Rows all(dtype, kRows, n_out);
    const Weight w = pack(isa, dtype, {&source.view, 1});
    matmul.run(x.view, w, all.view, e);
    expect_product(x, source.view, all, e, nullptr);
    for (int64_t n : {1, 2, 5, 6, 7, 16, 17, 20, 23, 48, 193}) {
      if (on_tiles && n <= kPanelRows) continue;
      for (int64_t begin : {int64_t{0}, int64_t{5}, kRows - n}) {
        const Rows some(dtype, n, n_out);
        matmul.run(x.view.slice_rows(begin, begin + n), w, some.view, e);
        EXPECT_EQ(std::memcmp(some.view.data, all.view.slice_rows(begin, begin + n).data,
                              static_cast<size_t>(some.view.bytes())),
                  0)
            << n << " rows from " << begin << ", " << n_out << " x " << n_in;
      }
    }
  }
}

// Sums that wait for the rest of their inputs, and tasks of any shape, change no bit.
TEST_P(OnEveryIsa, BlocksOnAmxChangeNothing) {
  const auto [dtype, isa] = GetParam();
  if (isa < Isa::kAmxBf16) GTEST_SKIP() << "products in blocks are AMX's";
  for (int64_t n_out : {33, 64, 400}) {
    for (int64_t n_in : {31, 64, 300}) {
      const Rows source(dtype, n_out, n_in, 0, 0, 7), residual(dtype, 270, n_out, 0, 0, 8);
      const Weight w = pack(isa, dtype, {&source.view, 1});
      AmxMemory memory;
      for (int64_t rows : {17, 48, 70, 270}) {
        const Rows x(dtype, rows, n_in, 3), whole(dtype, rows, n_out), blocks(dtype, rows, n_out);
        const Tensor before = residual.view.slice_rows(0, rows);
        const Epilogue of_rows{.act = Activation::kSilu, .residual = &before};
        const PanelSource panels{isa, panels_of(w, w.segments[0])};
        multiply_on_amx(panels, x.view, whole.view, of_rows, memory);
        expect_product(x, source.view, whole, of_rows, &residual);
        for (int64_t block_bytes : {1, 9000, 40000}) {
          multiply_on_amx(panels, x.view, blocks.view, of_rows, memory, block_bytes);
          EXPECT_EQ(
              std::memcmp(blocks.view.data, whole.view.data, static_cast<size_t>(rows * n_out * dtype_bytes(dtype))), 0)
              << rows << " rows, " << n_in << " inputs, " << n_out << " outputs, blocks of " << block_bytes;
        }
      }
    }
  }
}

TEST_P(OnEveryIsa, PacksUnalignedPartsAndReadsThemBack) {
  const auto [dtype, isa] = GetParam();
  for (DType from : {DType::kF32, DType::kBF16}) {
    for (int64_t n_in : {1, 2, 33, 128, 131, 300}) {
      const Rows a(from, 70, n_in, 0, 1, 2), b(from, 3, n_in, 2, 3, 4);
      const Tensor parts[] = {a.view, b.view};
      const Weight w = pack(isa, dtype, parts);
      ASSERT_EQ(w.n_out, 73);
      const std::vector<int32_t> ids = {72, 0, 64, 70, 69};
      const Rows y(dtype, 5, n_in);
      embed(isa, ids, w, y.view);
      for (size_t i = 0; i < ids.size(); ++i) {
        for (int64_t c = 0; c < n_in; ++c) {
          const float value = ids[i] < 70 ? value_at(a.view, ids[i], c) : value_at(b.view, ids[i] - 70, c);
          const float expected = dtype == DType::kBF16 ? to_float(to_bf16(value)) : value;
          ASSERT_EQ(value_at(y.view, static_cast<int64_t>(i), c), expected) << "id " << ids[i] << " column " << c;
        }
      }
    }
  }
}

TEST_P(OnEveryIsa, ActivationsOverTheirWholeRange) {
  const auto [dtype, isa] = GetParam();
  if (dtype != DType::kF32) GTEST_SKIP() << "the arithmetic is that of f32";
  std::vector<float> x;
  for (float v = -12.0f; v <= 12.0f; v += 0.0037f) x.push_back(v);
  for (float v : {0.0f, -0.0f, 1e-30f, -1e-30f, 1e30f, -1e30f, 100.0f, -100.0f}) x.push_back(v);
  std::vector<float> y(x.size());
  const int64_t n = static_cast<int64_t>(x.size());
  for (Activation act :
       {Activation::kSilu, Activation::kGelu, Activation::kGeluTanh, Activation::kQuickGelu, Activation::kRelu}) {
    activate(isa, Tensor(x.data(), DType::kF32, {1, n}), act, Tensor(y.data(), DType::kF32, {1, n}));
    for (size_t i = 0; i < x.size(); ++i) {
      const double expected = activation(act, x[i]);
      // e^s carries the rounding of s: some 1e-6 where |s| is 10 and more, and the result 1e-5 of x or less.
      const double relative = std::abs(x[i]) < 4 ? 1.2e-6 : 1e-5;
      ASSERT_NEAR(y[i], expected, relative * std::abs(expected) + 1e-20)
          << "activation " << static_cast<int>(act) << " at " << x[i];
    }
  }
}

TEST_P(OnEveryIsa, NormsAndConversionsMatchTheirFormulas) {
  const auto [dtype, isa] = GetParam();
  for (int64_t width : {1, 7, 16, 33, 576}) {
    const Rows x(dtype, 3, width, 5, 0, 1), w(dtype, 1, width, 0, 0, 2), b(dtype, 1, width, 0, 0, 3),
        y(dtype, 3, width, 2);
    layer_norm(isa, x.view, w.view, b.view, 1e-5f, y.view);
    const double tolerance = dtype == DType::kF32 ? 2e-5 : 0x1p-6;
    for (int64_t i = 0; i < 3; ++i) {
      double mean = 0, squares = 0;
      for (int64_t c = 0; c < width; ++c) mean += value_at(x.view, i, c) / static_cast<double>(width);
      for (int64_t c = 0; c < width; ++c)
        squares += std::pow(value_at(x.view, i, c) - mean, 2) / static_cast<double>(width);
      for (int64_t c = 0; c < width; ++c) {
        const double normed = (value_at(x.view, i, c) - mean) / std::sqrt(squares + 1e-5);
        const double expected = normed * value_at(w.view, 0, c) + value_at(b.view, 0, c);
        ASSERT_NEAR(value_at(y.view, i, c), expected, tolerance) << "width " << width;
      }
    }
    // Rounding is base/dtype.h's, bit for bit, on every instruction set.
    const Rows wide(DType::kF32, 2, width, 1, 2, 9), narrow(DType::kBF16, 2, width, 3, 2);
    convert(isa, wide.view, narrow.view);
    for (int64_t c = 0; c < width; ++c)
      ASSERT_EQ(value_at(narrow.view, 1, c), to_float(to_bf16(value_at(wide.view, 1, c))));
  }
}

TEST_P(OnEveryIsa, RoundsSpecialValuesAsDtypeDoes) {
  constexpr uint32_t kBits[] = {0x7fffffff, 0xffffffff, 0x7f800001, 0x7fc00000, 0x7f800000, 0xff800000,
                                0x7f7fffff, 0xff7fffff, 0x00000001, 0x807fffff, 0x80000000, 0x3f808000};
  constexpr int64_t kWidth = 37;
  const Rows from(DType::kF32, 1, kWidth), to(DType::kBF16, 1, kWidth);
  for (int64_t i = 0; i < kWidth; ++i)
    from.view.as<float>()[i] = std::bit_cast<float>(kBits[static_cast<size_t>(i) % std::size(kBits)]);
  convert(GetParam().isa, from.view, to.view);
  for (int64_t i = 0; i < kWidth; ++i)
    EXPECT_EQ(to.view.as<bf16>()[i].bits, to_bf16(from.view.as<float>()[i]).bits) << "value " << i;
}

INSTANTIATE_TEST_SUITE_P(All, OnEveryIsa,
                         testing::Values(Case{DType::kF32, Isa::kScalar}, Case{DType::kF32, Isa::kAvx2},
                                         Case{DType::kF32, Isa::kAvx512}, Case{DType::kBF16, Isa::kScalar},
                                         Case{DType::kBF16, Isa::kAvx2}, Case{DType::kBF16, Isa::kAvx512},
                                         Case{DType::kBF16, Isa::kAvx512Bf16}, Case{DType::kBF16, Isa::kAmxBf16}),
                         [](const auto& info) {
                           return std::string(dtype_name(info.param.dtype)) + "_" +
                                  std::string(isa_name(info.param.isa));
                         });

TEST(CpuBackend, UsesTheIsaLimitOfTheCaller) {
  const auto backend = make_cpu_backend(DType::kBF16, {.max_isa = Isa::kAvx2});
  EXPECT_EQ(backend->name(), "cpu");
  EXPECT_EQ(backend->compute_dtype(), DType::kBF16);
  EXPECT_LE(detect_isa(Isa::kAvx2), Isa::kAvx2);
  EXPECT_EQ(detect_isa(Isa::kScalar), Isa::kScalar);
}

}  // namespace
}  // namespace vlcache::cpu
