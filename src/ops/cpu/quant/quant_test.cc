// Quantised panels on every instruction set: the weights of the formula to the bit, products by codes and by values
// against sums in double, and the same results whatever the instruction set and the number of rows.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "base/at.h"
#include "base/numeric/quant_blocks.h"
#include "base/os/threads.h"
#include "ops/cpu/matmul/matmul.h"
#include "ops/cpu/packed.h"
#include "ops/cpu/quant/quant_kernel.h"
#include "ops/cpu/quant/quant_panel.h"

namespace vlcache::cpu {
namespace {

// All combinations of bits and groups, with kinds of scales and minima that take turns.
std::vector<QuantForm> forms() {
  std::vector<QuantForm> all;
  for (const int bits : {4, 5, 6, 8}) {
    for (const int group : {16, 32, 64, 128}) {
      for (int kind = 0; kind < 16; ++kind) {
        QuantForm form{static_cast<uint8_t>(bits), static_cast<uint8_t>(group), static_cast<ScaleKind>(kind % 4),
                       static_cast<MinKind>(kind / 4)};
        if (form.valid()) all.push_back(form);
        form.table = static_cast<CodeTable>(1 + kind % 2);
        if (form.valid()) all.push_back(form);
      }
    }
  }
  return all;
}

class RandomRows : public QuantSource {
 public:
  RandomRows(const QuantForm& form, int64_t n_out, int64_t n_in, std::vector<int32_t> order = {}, uint32_t seed = 7)
      : rows_(form, n_out, n_in), order_(std::move(order)) {
    std::mt19937 random(seed);
    for (uint8_t& code : rows_.codes) code = static_cast<uint8_t>(random() & ((1u << form.bits) - 1u));
    const auto words = [&](std::vector<uint16_t>& all, bool bytes) {
      for (uint16_t& word : all) {
        const float value = std::ldexp(static_cast<float>(random() % 2000) - 500.0f, -16);
        word = bytes                            ? static_cast<uint16_t>(random() & 0xffu)
               : form.scale == ScaleKind::kBF16 ? to_bf16(value).bits
                                                : float_to_f16(value);
      }
    };
    words(rows_.scales, form.byte_scales());
    words(rows_.mins, form.min != MinKind::kF16);
    words(rows_.shared_scales, false), words(rows_.shared_mins, false);
  }
  void set_codes(uint8_t code) { std::fill(rows_.codes.begin(), rows_.codes.end(), code); }
  QuantForm form() const override { return rows_.form; }
  int64_t n_out() const override { return rows_.n_rows; }
  int64_t n_in() const override { return rows_.n_in; }
  void read(int64_t first, int64_t n, QuantRows& out) const override {
    out.resize(rows_.form, n, n_in());
    const auto copy = [&](const auto& from, auto& to) {
      const int64_t width = std::ssize(from) / n_out();
      std::copy_n(from.begin() + first * width, n * width, to.begin());
    };
    copy(rows_.codes, out.codes), copy(rows_.scales, out.scales), copy(rows_.mins, out.mins);
    copy(rows_.shared_scales, out.shared_scales), copy(rows_.shared_mins, out.shared_mins);
  }
  std::span<const int32_t> input_order() const override { return order_; }
  // In the order of the codes.
  std::vector<float> values() const {
    std::vector<float> all(at(n_out() * n_in()));
    for (int64_t row = 0; row < n_out(); ++row) rows_.dequantise(row, all.data() + row * n_in());
    return all;
  }

 private:
  QuantRows rows_;
  std::vector<int32_t> order_;
};

std::vector<int32_t> random_order(int64_t n_in) {
  std::vector<int32_t> order(at(n_in));
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937(3));
  return order;
}

struct Level {
  Isa isa;
  bool byte_dots;
  std::string name() const { return std::string(isa_name(isa)) + (byte_dots ? " byte dots" : ""); }
};

// Those of this CPU, the slowest first.
std::vector<Level> levels() {
  std::vector<Level> all;
  for (const Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16, Isa::kAmxBf16}) {
    if (detect_isa(isa) != isa) continue;
    all.push_back({isa, false});
    if (has_byte_dots(isa)) all.push_back({isa, true});
  }
  return all;
}

struct Matrix {
  std::vector<std::byte> memory;
  Tensor view;
  Matrix(DType dtype, int64_t rows, int64_t columns) : memory(at(rows * columns * dtype_bytes(dtype))) {
    view = Tensor(memory.data(), dtype, {rows, columns});
    std::mt19937 random(static_cast<uint32_t>(columns));
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < view.numel(); ++i) {
      const float value = normal(random);
      if (dtype == DType::kF32) view.as<float>()[i] = value;
      if (dtype == DType::kBF16) view.as<bf16>()[i] = to_bf16(value);
    }
  }
  float at_index(int64_t i) const {
    return view.dtype == DType::kF32 ? view.as<float>()[i] : to_float(view.as<bf16>()[i]);
  }
};

// y against sums in double, for x of variance 1. rounding: of weights or of x, against their magnitude.
void expect_product(const Matrix& x, const std::vector<float>& w, const Matrix& y, double rounding) {
  const int64_t n_in = x.view.row_size(), n_out = y.view.row_size();
  for (int64_t i = 0; i < y.view.rows(); ++i) {
    for (int64_t o = 0; o < n_out; ++o) {
      double sum = 0, squares = 0;
      for (int64_t k = 0; k < n_in; ++k) {
        const double weight = w[at(o * n_in + k)];
        sum += x.at_index(i * n_in + k) * weight, squares += weight * weight;
      }
      ASSERT_NEAR(y.at_index(i * n_out + o), sum, rounding * std::sqrt(squares) + 1e-30)
          << "row " << i << " output " << o;
    }
  }
}

// A panel's values in bf16 are those in f32, rounded: [n_in][64] each, the inputs of bf16 in pairs.
void expect_brain_values(Isa isa, const QuantPanels& panels, int64_t panel) {
  const int64_t n = panels.layout.n_units() * kUnit * kPanel;
  std::vector<float> values(at(n));
  std::vector<bf16> brain(at(n));
  dequantise_panel(isa, panels.layout, panels.panel(panel), DType::kF32, reinterpret_cast<std::byte*>(values.data()));
  dequantise_panel(isa, panels.layout, panels.panel(panel), DType::kBF16, reinterpret_cast<std::byte*>(brain.data()));
  for (int64_t i = 0; i < n; ++i) {
    const int64_t k = i / kPanel, output = i % kPanel;
    const bf16 found = brain[at((k / 2 * kPanel + output) * 2 + k % 2)], right = to_bf16(values[at(i)]);
    const bool equal = std::isnan(to_float(right)) ? std::isnan(to_float(found)) : found.bits == right.bits;
    ASSERT_TRUE(equal) << isa_name(isa) << " output " << output << " input " << k;
  }
}

TEST(QuantPanels, HoldTheWeightsOfTheFormula) {
  set_threads(3);
  for (const QuantForm& form : forms()) {
    SCOPED_TRACE(form.describe());
    const RandomRows source(form, 70, 300);
    const std::vector<float> expected = source.values();
    const Weight w = pack_quantised(DType::kF32, source);
    const QuantPanels panels = quant_panels_of(w, w.segments[0]);
    std::vector<float> row(300), values(at(320 * kPanel));
    for (int64_t o = 0; o < 70; ++o) {
      dequantise_row(panels, o, row.data());
      ASSERT_EQ(std::memcmp(row.data(), expected.data() + o * 300, 300 * 4), 0) << "output " << o;
    }
    for (const Level& level : levels()) {
      if (level.byte_dots) continue;
      dequantise_panel(level.isa, panels.layout, panels.panel(1), DType::kF32,
                       reinterpret_cast<std::byte*>(values.data()));
      for (int64_t o = 64; o < 70; ++o) {
        for (int64_t k = 0; k < 300; ++k) {
          const float found = values[at(k * kPanel + o - 64)], right = expected[at(o * 300 + k)];
          // Plain loops have no fused multiply-add: where the product is not exact, they round twice.
          const double off = level.isa == Isa::kScalar ? 1e-5 * (2 + std::abs(right)) : 0;
          ASSERT_NEAR(found, right, off) << level.name() << " output " << o << " input " << k;
        }
      }
      for (int64_t panel = 0; panel < 2; ++panel) expect_brain_values(level.isa, panels, panel);
    }
  }
}

// Blocks of random bits, whose scales may be infinite, or so small that values lie below the normal numbers: every
// value stays what it is.
TEST(QuantPanels, HoldBlocksOfGguf) {
  std::mt19937 random(5);
  for (int i = 0; i < kBlockKinds; ++i) {
    const BlockShape& shape = block_shape(static_cast<BlockKind>(i));
    SCOPED_TRACE(shape.name);
    constexpr int64_t kOut = 66, kIn = 512;
    std::vector<std::byte> blocks(at(kOut * kIn / shape.n_values * shape.bytes));
    for (std::byte& b : blocks) b = static_cast<std::byte>(random());
    const BlockRows source(static_cast<BlockKind>(i), blocks, kOut, kIn);
    const Weight w = pack_quantised(DType::kF32, source);
    QuantRows rows;
    source.read(0, kOut, rows);
    std::vector<float> found(kIn), expected(kIn);
    for (int64_t o = 0; o < kOut; ++o) {
      dequantise_row(quant_panels_of(w, w.segments[0]), o, found.data());
      rows.dequantise(o, expected.data());
      ASSERT_EQ(std::memcmp(found.data(), expected.data(), kIn * 4), 0) << "output " << o;
    }
    for (const Level& level : levels()) {
      if (!level.byte_dots) expect_brain_values(level.isa, quant_panels_of(w, w.segments[0]), 0);
    }
  }
}

TEST(QuantMatmul, ByCodesAndByValues) {
  set_threads(3);
  for (const QuantForm& form : forms()) {
    SCOPED_TRACE(form.describe());
    constexpr int64_t kRows = 67, kOut = 67, kIn = 300;
    const RandomRows source(form, kOut, kIn);
    const std::vector<float> values = source.values();
    std::vector<std::byte> first, first_of_8_bits;  // of the first level with fused multiply-adds
    for (const Level& level : levels()) {
      SCOPED_TRACE(level.name());
      Matmul matmul(level.isa, DType::kBF16, {level.byte_dots});
      const Weight w = pack_quantised(DType::kBF16, source);
      const QuantPanels panels = quant_panels_of(w, w.segments[0]);
      // 67 rows: codes that are stored as bytes, a last group of three. Fewer: each way to hold sums, groups cut short.
      const Matrix x(DType::kBF16, kRows, kIn), y(DType::kF32, kRows, kOut), few(DType::kF32, kRows, kOut);
      const auto expect_same_rows = [&](Matmul& product) {
        for (const int64_t n : {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 31, 37, 64}) {
          product.by_codes(x.view.slice_rows(3, 3 + n), panels, few.view.slice_rows(0, n), {});
          EXPECT_EQ(std::memcmp(few.view.data, y.view.slice_rows(3, 3 + n).data, at(n * kOut * 4)), 0)
              << "depends on the batch of " << n;
        }
      };
      matmul.by_codes(x.view, panels, y.view, {});
      expect_product(x, values, y, 4e-4);  // 15 bits for each unit's largest
      if (level.isa != Isa::kScalar) {
        if (first.empty()) first = y.memory;
        EXPECT_EQ(first, y.memory);
      }
      expect_same_rows(matmul);
      if (form.scale == ScaleKind::kF16) {
        SCOPED_TRACE("activations of 8 bits");
        Matmul of_8_bits(level.isa, DType::kBF16, {level.byte_dots, ActivationBits::k8});
        of_8_bits.by_codes(x.view, panels, y.view, {});
        expect_product(x, values, y, 0.03);
        if (level.isa != Isa::kScalar) {
          if (first_of_8_bits.empty()) first_of_8_bits = y.memory;
          EXPECT_EQ(first_of_8_bits, y.memory);
        }
        expect_same_rows(of_8_bits);
      }
      matmul.by_values(x.view, panels, y.view, {});
      expect_product(x, values, y, 0x1p-6);  // weights in bf16, those of one code and group alike

      Matmul exact(level.isa, DType::kF32);
      const Weight w32 = pack_quantised(DType::kF32, source);
      const Matrix x32(DType::kF32, kRows, kIn), y32(DType::kF32, kRows, kOut);
      exact.run(x32.view, w32, y32.view, {});
      expect_product(x32, values, y32, 1e-5);
    }
  }
}

// The largest codes times the largest integers of x, whose high and low halves are: sums in 16 bits do not overflow.
TEST(QuantMatmul, LargestSums) {
  set_threads(3);
  constexpr int64_t kRows = 3, kOut = 65, kIn = 96;
  const Matrix x(DType::kBF16, kRows, kIn), y(DType::kF32, kRows, kOut);
  for (int64_t k = 0; k < kIn; ++k) {
    // 255/256 of a unit's largest is 127 * 128 - 64.
    const float low = k % kUnit == 0 ? 1.0f : 255.0f / 256;
    x.view.row<bf16>(0)[k] = to_bf16(1.0f), x.view.row<bf16>(1)[k] = to_bf16(low);
    x.view.row<bf16>(2)[k] = to_bf16(-low);
  }
  for (const QuantForm& form : forms()) {
    if (form.min != MinKind::kNone) continue;  // weights of about 0, whose sums are all rounding
    SCOPED_TRACE(form.describe());
    RandomRows source(form, kOut, kIn);
    source.set_codes(static_cast<uint8_t>((1 << form.bits) - 1));
    const std::vector<float> values = source.values();
    const Weight w = pack_quantised(DType::kBF16, source);
    for (const Level& level : levels()) {
      SCOPED_TRACE(level.name());
      for (const ActivationBits bits : {ActivationBits::k15, ActivationBits::k8}) {
        Matmul matmul(level.isa, DType::kBF16, {level.byte_dots, bits});
        for (const int64_t n : {int64_t{1}, kRows}) {  // one row and many
          for (int64_t row = 0; row < kRows; row += n)
            matmul.by_codes(x.view.slice_rows(row, row + n), quant_panels_of(w, w.segments[0]),
                            y.view.slice_rows(row, row + n), {});
          expect_product(x, values, y, bits == ActivationBits::k15 ? 4e-4 : 0.05);
        }
      }
    }
  }
}

// Tiles of more panels than are walked at once, and more rows than a tile has: to the bit as few rows.
TEST(QuantMatmul, TilesOfManyPanels) {
  set_threads(1);
  constexpr int64_t kRows = 200, kOut = 2550, kIn = 270, kFirst = 190;
  const Matrix x(DType::kBF16, kRows, kIn), x32(DType::kF32, kRows, kIn), y(DType::kF32, kRows, kOut),
      few(DType::kF32, 3, kOut);
  const auto expect_same = [&] {
    EXPECT_EQ(std::memcmp(few.view.data, y.view.slice_rows(kFirst, kFirst + 3).data, at(few.view.bytes())), 0);
  };
  for (const QuantForm& form : {kInt4, kInt8}) {
    const RandomRows source(form, kOut, kIn);
    const Weight w = pack_quantised(DType::kBF16, source), w32 = pack_quantised(DType::kF32, source);
    const QuantPanels panels = quant_panels_of(w, w.segments[0]), panels32 = quant_panels_of(w32, w32.segments[0]);
    for (const Level& level : levels()) {
      if (level.isa != Isa::kAvx2 && !level.byte_dots) continue;
      SCOPED_TRACE(level.name() + " " + form.describe());
      for (const ActivationBits bits : {ActivationBits::k15, ActivationBits::k8}) {
        Matmul matmul(level.isa, DType::kBF16, {level.byte_dots, bits});
        matmul.by_codes(x.view, panels, y.view, {});
        matmul.by_codes(x.view.slice_rows(kFirst, kFirst + 3), panels, few.view, {});
        expect_same();
      }
      if (level.isa != Isa::kAvx2) continue;
      Matmul exact(level.isa, DType::kF32);
      exact.by_values(x32.view, panels32, y.view, {});
      exact.by_values(x32.view.slice_rows(kFirst, kFirst + 3), panels32, few.view, {});
      expect_same();
    }
  }
  set_threads(3);
}

// Panels of codes give to the bit what the values give that they stand for.
TEST(QuantMatmul, CodesOnAmxAreTheirValues) {
  constexpr Isa kIsa = Isa::kAmxBf16;
  if (detect_isa() < kIsa) GTEST_SKIP() << "this CPU has no " << isa_name(kIsa);
  constexpr int64_t kRows = 550, kOut = 150, kIn = 300;
  const Matrix x(DType::kBF16, kRows, kIn), values(DType::kBF16, kOut, kIn);
  const Matrix found(DType::kBF16, kRows, kOut), expected(DType::kBF16, kRows, kOut);
  for (const QuantForm& form : forms()) {
    SCOPED_TRACE(form.describe());
    const RandomRows source(form, kOut, kIn);
    const std::vector<float> plain = source.values();
    std::transform(plain.begin(), plain.end(), values.view.as<bf16>(), to_bf16);
    const Weight coded = pack_quantised(DType::kBF16, source), dense = pack(kIsa, DType::kBF16, {&values.view, 1});
    const QuantPanels codes = quant_panels_of(coded, coded.segments[0]);
    AmxMemory memory;
    const auto expect_equal = [&](int64_t rows, int64_t block_bytes) {
      const Tensor in = x.view.slice_rows(0, rows), of_codes = found.view.slice_rows(0, rows);
      const Tensor of_values = expected.view.slice_rows(0, rows);
      multiply_on_amx({kIsa, {nullptr, DType::kBF16, kOut, kIn}, &codes}, in, of_codes, {}, memory, block_bytes);
      multiply_on_amx({kIsa, panels_of(dense, dense.segments[0])}, in, of_values, {}, memory);
      EXPECT_EQ(std::memcmp(of_codes.data, of_values.data, at(of_codes.bytes())), 0) << rows << " rows";
    };
    expect_equal(70, 0);
    if (form != kInt4) continue;
    // More rows than a task has, with and without sums that wait for the rest of their inputs.
    set_threads(1);
    expect_equal(kRows, 0);
    expect_equal(kRows, 9000);
    set_threads(3);
  }
}

// Codes in an order of inputs multiply x as the same codes multiply x in that order, to the bit, beside a segment that
// has none; rows of f32 are the weights, each in its input's place.
TEST(QuantMatmul, InputsInAnOrderOfTheirOwn) {
  set_threads(3);
  constexpr int64_t kRows = 70, kOut = 67, kIn = 300;
  constexpr QuantForm kForm = {4, 64, ScaleKind::kF16, MinKind::kZeroPoint};
  const std::vector<int32_t> order = random_order(kIn);
  const RandomRows plain(kForm, kOut, kIn), ordered(kForm, kOut, kIn, order);
  for (const Level& level : levels()) {
    for (const DType dtype : {DType::kBF16, DType::kF32}) {
      SCOPED_TRACE(level.name());
      Matmul matmul(level.isa, dtype, {level.byte_dots});
      const Weight w = pack_quantised(dtype, plain);
      Weight mixed = pack_quantised(dtype, ordered);
      mixed.segments.push_back(std::move(pack_quantised(dtype, plain).segments[0]));
      mixed.n_out = 2 * kOut;
      const Matrix x(dtype, kRows, kIn), sorted(dtype, kRows, kIn);
      for (int64_t i = 0; i < kRows * kIn; ++i) {
        const int64_t from = i - i % kIn + order[at(i % kIn)], size = dtype_bytes(dtype);
        std::memcpy(sorted.view.data + i * size, x.view.data + from * size, at(size));
      }
      for (const int64_t n : {int64_t{1}, int64_t{5}, kRows}) {
        const Matrix y(DType::kF32, n, 2 * kOut), of_x(DType::kF32, n, kOut), of_sorted(DType::kF32, n, kOut);
        matmul.run(x.view.slice_rows(0, n), mixed, y.view, {});
        matmul.run(x.view.slice_rows(0, n), w, of_x.view, {});
        matmul.run(sorted.view.slice_rows(0, n), w, of_sorted.view, {});
        for (int64_t i = 0; i < n; ++i) {
          const float* row = y.view.row<float>(i);
          EXPECT_EQ(std::memcmp(row, of_sorted.view.row<float>(i), kOut * 4), 0) << n << " rows";
          EXPECT_EQ(std::memcmp(row + kOut, of_x.view.row<float>(i), kOut * 4), 0) << n << " rows";
        }
      }
    }
  }
  const Weight w = pack_quantised(DType::kF32, ordered);
  const std::vector<float> values = plain.values();
  const int32_t ids[] = {66, 3};
  const Matrix rows(DType::kF32, 2, kIn);
  embed(Isa::kScalar, ids, w, rows.view);
  for (int64_t i = 0; i < 2 * kIn; ++i)
    EXPECT_EQ(rows.view.row<float>(i / kIn)[order[at(i % kIn)]], values[at(ids[i / kIn] * kIn + i % kIn)]);
}

// What products keep beside their operands is known before them, for the form that needs most.
TEST(QuantMatmul, ScratchIsNoLargerThanItSays) {
  set_threads(3);
  constexpr int64_t kOut = 200, kIn = 300;
  const RandomRows plain(kInt8, kOut, kIn), ordered(kInt8, kOut, kIn, random_order(kIn));
  for (const Level& level : levels()) {
    for (const DType dtype : {DType::kBF16, DType::kF32}) {
      SCOPED_TRACE(level.name());
      for (const ActivationBits bits : {ActivationBits::k15, ActivationBits::k8}) {
        const Matrix x(dtype, 70, kIn), y(DType::kF32, 70, kOut);
        for (const RandomRows* source : {&plain, &ordered}) {
          Matmul matmul(level.isa, dtype, {level.byte_dots, bits, level.isa == Isa::kAvx2});
          const Weight w = pack_quantised(dtype, *source);
          const bool in_order = source == &ordered;
          for (int64_t n = 1; n <= 70; ++n) {
            matmul.run(x.view.slice_rows(0, n), w, y.view.slice_rows(0, n), {});
            EXPECT_LE(matmul.scratch_bytes(), matmul.quantised_scratch_bytes(n, kIn, in_order)) << n << " rows";
          }
          // Nor is it far smaller; on AMX a matrix of few outputs takes fewer panels at once than one of many.
          const int64_t times = level.isa >= Isa::kAmxBf16 ? 3 : 2;
          EXPECT_GT(times * matmul.scratch_bytes(), matmul.quantised_scratch_bytes(70, kIn, in_order));
        }
      }
    }
  }
}

// One loop over all groups gives what a product of each gives, to the bit, in the same memory.
TEST(QuantMatmul, GroupsInOneLoop) {
  set_threads(3);
  constexpr int64_t kOut = 200, kIn = 300;
  for (const Level& level : levels()) {
    SCOPED_TRACE(level.name());
    for (const ActivationBits bits : {ActivationBits::k15, ActivationBits::k8}) {
      // Activations of 8 bits are multiplied with codes whatever the number of rows, those of 15 bits up to 8 at least.
      const std::vector<int32_t> offsets = bits == ActivationBits::k8
                                               ? std::vector<int32_t>{0, 0, 1, 1, 4, 5, 13, 21, 33}
                                               : std::vector<int32_t>{0, 0, 1, 1, 6, 7, 8, 8, 8};
      const int64_t n = offsets.back();
      Matmul matmul(level.isa, DType::kBF16, {level.byte_dots, bits}),
          one_by_one(level.isa, DType::kBF16, {level.byte_dots, bits});
      std::vector<Weight> weights;
      for (size_t g = 0; g + 1 < offsets.size(); ++g) {
        weights.push_back(pack_quantised(DType::kBF16, RandomRows(kInt4, kOut, kIn, {}, static_cast<uint32_t>(g))));
      }
      const Matrix x(DType::kBF16, n, kIn), y(DType::kBF16, n, kOut), expected(DType::kBF16, n, kOut);
      EXPECT_TRUE(matmul.run_groups(x.view, weights, offsets, y.view));
      for (size_t g = 0; g < weights.size(); ++g) {
        const auto rows = [&](const Matrix& m) { return m.view.slice_rows(offsets[g], offsets[g + 1]); };
        one_by_one.run(rows(x), weights[g], rows(expected), {});
      }
      EXPECT_EQ(y.memory, expected.memory);
      EXPECT_LE(matmul.scratch_bytes(), matmul.quantised_scratch_bytes(n, kIn, false));

      constexpr int32_t kMany = kMostGrouped + 1;
      const Matrix many(DType::kBF16, kMany, kIn), of_many(DType::kBF16, kMany, kOut);
      EXPECT_FALSE(matmul.run_groups(many.view, {weights.data(), 1}, std::vector<int32_t>{0, kMany}, of_many.view));
      weights[4] = pack_quantised(DType::kBF16, RandomRows(kInt8, kOut, kIn));
      EXPECT_FALSE(matmul.run_groups(x.view, weights, offsets, y.view)) << "two forms";
      weights[4] = pack_quantised(DType::kBF16, RandomRows(kInt4, kOut, kIn, random_order(kIn)));
      EXPECT_FALSE(matmul.run_groups(x.view, weights, offsets, y.view)) << "an order of inputs";
      weights[4] = pack(level.isa, DType::kBF16, {&many.view, 1});
      EXPECT_FALSE(matmul.run_groups(x.view, weights, offsets, y.view)) << "values";
    }
  }
}

// Rows that integers cannot hold: zero, below the normal numbers, infinite, NaN.
TEST(QuantMatmul, RowsOutOfRange) {
  const RandomRows source(kInt4, 5, 64);
  for (const Level& level : levels()) {
    SCOPED_TRACE(level.name());
    Matmul matmul(level.isa, DType::kBF16, {level.byte_dots});
    const Weight w = pack_quantised(DType::kBF16, source);
    const Matrix x(DType::kBF16, 4, 64), y(DType::kF32, 4, 5);
    std::fill_n(x.view.row<bf16>(0), 64, to_bf16(0.0f));
    std::fill_n(x.view.row<bf16>(1), 64, to_bf16(1e-40f));
    x.view.row<bf16>(2)[40] = to_bf16(INFINITY);
    x.view.row<bf16>(3)[3] = to_bf16(NAN);
    matmul.run(x.view, w, y.view, {});
    for (int64_t o = 0; o < 5; ++o) {
      EXPECT_EQ(y.view.row<float>(0)[o], 0.0f);
      EXPECT_NEAR(y.view.row<float>(1)[o], 0.0f, 1e-37f);
      EXPECT_FALSE(std::isfinite(y.view.row<float>(2)[o]));
      EXPECT_TRUE(std::isnan(y.view.row<float>(3)[o]));
    }
  }
}

}  // namespace
}  // namespace vlcache::cpu
