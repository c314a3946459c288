// Rows of fused matrices of codes: across their bounds, and of heads whose rotation pairs rows.
#include "model/weights/code_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/at.h"

namespace vlcache {
namespace {

// The codes of row i are i.
class CountedRows : public QuantSource {
 public:
  CountedRows(int64_t first, int64_t n) : first_(first), n_(n) {}
  QuantForm form() const override { return {.bits = 8, .group = 16, .min = MinKind::kZeroPoint}; }
  int64_t n_out() const override { return n_; }
  int64_t n_in() const override { return 32; }
  void read(int64_t first, int64_t n, QuantRows& out) const override {
    ASSERT_LE(first + n, n_);
    out.resize(form(), n, n_in());
    for (int64_t i = 0; i < n; ++i) {
      const auto value = static_cast<uint8_t>(first_ + first + i);
      std::fill_n(out.codes.begin() + i * 32, 32, value);
      std::fill_n(out.scales.begin() + i * 2, 2, static_cast<uint16_t>(value * 3));
      std::fill_n(out.mins.begin() + i * 2, 2, static_cast<uint16_t>(value + 1));
    }
  }

 private:
  int64_t first_, n_;
};

std::vector<int> rows_of(const CodeRows& rows, int64_t first, int64_t n) {
  QuantRows out;
  rows.read(first, n, out);
  EXPECT_EQ(out.n_rows, n);
  std::vector<int> found;
  for (int64_t i = 0; i < n; ++i) {
    const int row = out.codes[at(i * 32)];
    EXPECT_EQ(out.codes[at(i * 32 + 31)], row);
    EXPECT_EQ(out.scales[at(i * 2 + 1)], row * 3);
    EXPECT_EQ(out.mins[at(i * 2 + 1)], row + 1);
    found.push_back(row);
  }
  return found;
}

TEST(CodeRows, CrossTheBoundsOfTheirParts) {
  const CountedRows a(0, 5), b(5, 3), c(8, 4);
  const CodeRows rows({{&a}, {&b}, {&c}});
  EXPECT_EQ(rows.n_out(), 12);
  EXPECT_THAT(rows_of(rows, 0, 12), testing::ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11));
  EXPECT_THAT(rows_of(rows, 4, 5), testing::ElementsAre(4, 5, 6, 7, 8));
  EXPECT_THAT(rows_of(rows, 9, 3), testing::ElementsAre(9, 10, 11));
}

// Row 2c of a head is row c of its first half, row 2c + 1 of its second.
TEST(CodeRows, PairsOfRowsBecomeHalvesOfHeads) {
  const CountedRows a(0, 12), b(12, 3);
  const CodeRows rows({{&a, 6}, {&b}});
  EXPECT_THAT(rows_of(rows, 0, 15), testing::ElementsAre(0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11, 12, 13, 14));
  EXPECT_THAT(rows_of(rows, 5, 3), testing::ElementsAre(5, 6, 8));
}

}  // namespace
}  // namespace vlcache
