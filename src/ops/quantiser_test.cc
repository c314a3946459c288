// The quantiser: errors against those known for normal values, values at the ends of its range, and independence of how
// rows are read.
#include "ops/quantiser.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "base/at.h"

namespace vlcache {
namespace {

struct Values {
  std::vector<float> memory;
  Tensor view;
  Values(int64_t rows, int64_t columns, float scale = 0.02f) : memory(at(rows * columns)) {
    view = Tensor(memory.data(), DType::kF32, {rows, columns});
    std::mt19937 random(3);
    std::normal_distribution<float> normal(0.0f, scale);
    for (float& x : memory) x = normal(random);
  }
};

std::vector<float> dequantised(const QuantisedRows& rows) {
  std::vector<float> all(at(rows.n_out() * rows.n_in()));
  QuantRows block;
  for (int64_t first = 0; first < rows.n_out(); first += kQuantBlock) {
    const int64_t n = std::min(kQuantBlock, rows.n_out() - first);
    rows.read(first, n, block);
    for (int64_t i = 0; i < n; ++i) block.dequantise(i, all.data() + (first + i) * rows.n_in());
  }
  return all;
}

double relative_error(const std::vector<float>& found, const std::vector<float>& expected) {
  double squares = 0, all = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    squares += std::pow(double{found[i]} - double{expected[i]}, 2), all += std::pow(double{expected[i]}, 2);
  }
  return squares / all;
}

// Mean squared errors relative to the values'. Q4_0 of the same values has 7.4e-3, Q4_1 at half a bit more 6.1e-3.
TEST(Quantiser, ErrorsOfNormalValues) {
  const Values values(256, 2048);
  const auto error = [&](const QuantForm& form) {
    return relative_error(dequantised(QuantisedRows(form, {values.view})), values.memory);
  };
  EXPECT_LT(error(kInt4), 5.2e-3);
  EXPECT_LT(error(kInt6), 3.1e-4);
  EXPECT_LT(error(kInt8), 3e-5);
  EXPECT_NEAR(kInt4.bits_per_weight(2048), 4.5 + 32.0 / 2048, 1e-9);
}

// Values on the form's own grid stay.
TEST(Quantiser, KeepsWhatItsFormHolds) {
  Values values(5, 128);
  for (const QuantForm& form : {kInt4, kInt6}) {
    const size_t levels = size_t{1} << form.bits;
    for (size_t i = 0; i < values.memory.size(); ++i) {
      // Each group has its ends: 32 steps of an odd number reach all codes, or every second and the ends.
      const size_t code = i % 32 == 0 ? 0 : i % 32 == 1 ? levels - 1 : i * 7 % levels;
      values.memory[i] = static_cast<float>(code) * 0.25f - 2.0f;
    }
    EXPECT_LT(relative_error(dequantised(QuantisedRows(form, {values.view})), values.memory), 1e-5) << form.describe();
  }
}

TEST(Quantiser, RowsAreWhatTheyAreHoweverTheyAreRead) {
  const Values values(70, 83);
  const QuantisedRows whole(kInt4, {values.view});
  const QuantisedRows parts(kInt4, {values.view.slice_rows(0, 9), values.view.slice_rows(9, 70)});
  QuantRows a, b;
  whole.read(6, 64, a);
  parts.read(8, 5, b);
  for (int64_t row = 0; row < 5; ++row) {
    std::vector<float> from_a(83), from_b(83);
    a.dequantise(row + 2, from_a.data()), b.dequantise(row, from_b.data());
    EXPECT_EQ(from_a, from_b) << "row " << row;
  }
}

TEST(Quantiser, EndsOfTheRange) {
  Values values(6, 64);
  const auto fill = [&](int64_t row, auto value) {
    for (int64_t k = 0; k < 64; ++k) values.view.row<float>(row)[k] = value(k);
  };
  fill(0, [](int64_t) { return 0.0f; });
  fill(1, [](int64_t) { return 0.5f; });
  fill(2, [](int64_t) { return -0.5f; });
  fill(3, [](int64_t k) { return k == 40 ? 1000.0f : 0.0f; });
  fill(4, [](int64_t k) { return 1e-7f * static_cast<float>(k % 5); });
  fill(5, [](int64_t k) { return 1e20f * static_cast<float>(k % 2); });
  for (const QuantForm& form : {kInt4, kInt6, kInt8}) {
    const QuantisedRows rows(form, {values.view});
    const std::vector<float> found = dequantised(rows);
    EXPECT_TRUE(rows.all_finite());
    for (int64_t k = 0; k < 64; ++k) {
      EXPECT_EQ(found[at(k)], 0.0f) << form.describe();
      EXPECT_NEAR(found[at(64 + k)], 0.5f, 3e-3f) << form.describe();
      EXPECT_NEAR(found[at(128 + k)], -0.5f, 3e-3f) << form.describe();
      EXPECT_NEAR(found[at(192 + k)], k == 40 ? 1000.0f : 0.0f, 4.0f) << form.describe();
      EXPECT_NEAR(found[at(256 + k)], values.view.row<float>(4)[k], 1e-6f) << form.describe();
      EXPECT_TRUE(std::isfinite(found[at(320 + k)])) << form.describe();
    }
  }
  values.view.row<float>(3)[7] = std::numeric_limits<float>::quiet_NaN();
  const QuantisedRows rows(kInt8, {values.view});
  dequantised(rows);
  EXPECT_FALSE(rows.all_finite());
}

}  // namespace
}  // namespace vlcache
