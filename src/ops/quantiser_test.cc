// The quantiser: errors against those known for normal values, values at the ends of its range, and independence of how
// rows are read.
#include "ops/quantiser.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "base/at.h"
#include "base/dtype.h"

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

struct Range {
  float low, high;
  float largest() const { return std::max(-low, high); }
};

// Of normal values in a format: `rounded(x, range)` is the format's for x of a group with that range.
template <typename Rounded>
float distance_of(const Rounded& rounded) {
  Values values(64, 1024);
  for (size_t begin = 0; begin < values.memory.size(); begin += 32) {
    const std::span group(values.memory.data() + begin, 32);
    const auto [low, high] = std::ranges::minmax(group);
    for (float& x : group) x = rounded(x, Range{low, high});
  }
  return distance_from_grid(values.view);
}

float rounded_to(float x, float step) { return step * std::nearbyint(x / step); }

// Of a grid of 16.
float as_q4_1(float x, const Range& range) {
  return range.low + rounded_to(x - range.low, (range.high - range.low) / 15);
}

// With 3 bits below the leading one, as E4M3 has it.
float as_fp8(float x, const Range& range) {
  const float y = 448 * x / range.largest(), exponent = std::floor(std::log2(std::max(std::abs(y), 0x1p-9f)));
  return rounded_to(y, std::exp2(std::max(exponent, -6.0f) - 3)) * range.largest();
}

TEST(Quantiser, TellsValuesNearAGridFromOthers) {
  std::mt19937 random(4);
  std::normal_distribution<float> normal;
  const auto moved = [&](float steps) {
    return distance_of(
        [&](float x, const Range& r) { return as_q4_1(x, r) + steps * normal(random) * (r.high - r.low) / 15; });
  };
  EXPECT_LT(distance_of(as_q4_1), 0.001f);
  EXPECT_LT(distance_of([&](float x, const Range& r) { return to_float(to_bf16(as_q4_1(x, r))); }), 0.01f);
  EXPECT_NEAR(moved(0.05f), 0.04f, 0.01f);
  EXPECT_NEAR(moved(0.2f), 0.155f, 0.03f);
  // Formats of more bits, and values as they come, know of no grid of 16.
  EXPECT_GT(moved(1), 0.2f);
  EXPECT_GT(distance_of([](float x, const Range&) { return x; }), 0.2f);
  EXPECT_GT(distance_of([](float x, const Range&) { return to_float(to_bf16(x)); }), 0.2f);
  EXPECT_GT(distance_of([](float x, const Range& r) { return rounded_to(x, r.largest() / 16); }), 0.2f);
  EXPECT_GT(distance_of([](float x, const Range& r) { return rounded_to(x, r.largest() / 127); }), 0.2f);
  EXPECT_GT(distance_of(as_fp8), 0.2f);
}

TEST(Quantiser, DistancesOfFewAndInvalidValues) {
  Values values(3, 83);
  EXPECT_GT(distance_from_grid(values.view), 0.15f);
  EXPECT_EQ(distance_from_grid(values.view.slice_rows(0, 0)), 0);
  Values narrow(64, 31);
  EXPECT_EQ(distance_from_grid(narrow.view), 0);  // no whole group
  for (float& x : values.memory) x = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(distance_from_grid(values.view), 0);
  for (float& x : values.memory) x = 0;
  EXPECT_EQ(distance_from_grid(values.view), 0);
  std::vector<std::byte> bytes(64 * sizeof(float) + 1);  // at an odd address
  std::memcpy(bytes.data() + 1, narrow.memory.data(), 64 * sizeof(float));
  EXPECT_EQ(distance_from_grid(Tensor(bytes.data() + 1, DType::kF32, {2, 32})),
            distance_from_grid(Tensor(narrow.memory.data(), DType::kF32, {2, 32})));
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

// What a row of one group becomes, input by input.
std::vector<float> dequantised_group(const std::vector<float>& values, const std::vector<float>& weights) {
  std::vector<float> row = values, found(32);
  QuantRows read;
  QuantisedRows(kInt4, {Tensor(row.data(), DType::kF32, {1, 32})}, weights).read(0, 1, read);
  read.dequantise(0, found.data());
  return found;
}

// Two inputs of each code, 0.2 above and below a line: it moves to where the weighted squares are least, by hand
// 0.2 (a - b) / (a + b) for weights a above and b below. Bytes hold steps of 4 / 255.
TEST(Quantiser, WeightedLeastSquaresByHand) {
  std::vector<float> values;
  for (int code = 0; code < 16; ++code) {
    values.push_back(static_cast<float>(code) - 4.0f + 0.2f);
    values.push_back(static_cast<float>(code) - 4.0f - 0.2f);
  }
  struct Case {
    float above, below, first;
  };
  for (const Case& c : {Case{1, 1, -4.0f}, Case{3, 1, -3.9f}, Case{1, 3, -4.1f}, Case{9, 1, -3.84f}, Case{7, 0, -3.8f},
                        Case{0, 1e-20f, -4.2f}, Case{0, 0, -4.0f}, Case{3e30f, 1e30f, -3.9f}}) {
    std::vector<float> weights;
    for (int code = 0; code < 16; ++code) weights.push_back(c.above), weights.push_back(c.below);
    const std::vector<float> found = dequantised_group(values, weights);
    for (const size_t i : {0, 1}) EXPECT_NEAR(found[i], c.first, 0.012f) << c.above << " " << c.below;
    for (const size_t i : {30, 31}) EXPECT_NEAR(found[i], c.first + 15.0f, 0.05f) << c.above << " " << c.below;
  }
}

TEST(Quantiser, EqualWeightsAreNone) {
  const Values values(9, 83);
  const std::vector<float> ones(83, 1.0f), more(83, 0.37f);
  for (const QuantForm& form : {kInt4, kInt6, kInt8}) {
    QuantRows none, equal;
    QuantisedRows(form, {values.view}).read(0, 9, none);
    for (const std::vector<float>& weights : {ones, more}) {
      QuantisedRows(form, {values.view}, weights).read(0, 9, equal);
      EXPECT_EQ(none.codes, equal.codes) << form.describe();
      EXPECT_EQ(std::tie(none.scales, none.mins), std::tie(equal.scales, equal.mins)) << form.describe();
      EXPECT_EQ(std::tie(none.shared_scales, none.shared_mins), std::tie(equal.shared_scales, equal.shared_mins));
    }
  }
}

// Of log-normal weights, as inputs of language models have them or more unequal.
TEST(Quantiser, WeightsLowerTheErrorTheyWeigh) {
  const Values values(128, 1024);
  std::mt19937 random(5);
  std::lognormal_distribution<float> draw(0.0f, 1.0f);
  std::vector<float> weights(1024);
  for (float& weight : weights) weight = draw(random);
  const auto error = [&](const QuantForm& form, std::span<const float> given) {
    const std::vector<float> found = dequantised(QuantisedRows(form, {values.view}, given));
    double sum = 0;
    for (size_t i = 0; i < found.size(); ++i) {
      sum += double{weights[i % 1024]} * std::pow(double{found[i]} - double{values.memory[i]}, 2);
    }
    return sum;
  };
  for (const QuantForm& form : {kInt4, kInt6}) {
    EXPECT_LT(error(form, weights), 0.9 * error(form, {})) << form.describe();
  }
  EXPECT_EQ(error(kInt8, weights), error(kInt8, {}));
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
