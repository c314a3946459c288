// Orders and positions of patches; expected values from transformers 5.23's vision_utils.
#include "model/images/patch_grid.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>

namespace vlcache {
namespace {

using testing::ElementsAre;

VisionConfig merging(int64_t merge, int64_t window) {
  VisionConfig config;
  config.hidden_size = 16;
  config.n_heads = 2;
  config.patch_size = 14;
  config.merge = merge;
  config.window = window;
  return config;
}

TEST(PatchOrder, SquareAfterSquare) {
  const PatchOrder order = patch_order(merging(2, 0), {.rows = 2, .cols = 6});
  EXPECT_THAT(order.patches, ElementsAre(0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11));
  EXPECT_THAT(order.features, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11));
  EXPECT_THAT(order.windows, ElementsAre(0, 12));
}

// Five by three squares in windows of two by two: the last row and column of windows are cut off.
TEST(PatchOrder, WindowAfterWindow) {
  const PatchOrder order = patch_order(merging(1, 28), {.rows = 5, .cols = 3});
  EXPECT_THAT(order.patches, ElementsAre(0, 1, 3, 4, 2, 5, 6, 7, 9, 10, 8, 11, 12, 13, 14));
  EXPECT_THAT(order.features, ElementsAre(0, 1, 4, 2, 3, 5, 6, 7, 10, 8, 9, 11, 12, 13, 14));
  EXPECT_THAT(order.windows, ElementsAre(0, 4, 6, 10, 12, 14, 15));
  const PatchOrder merged = patch_order(merging(2, 56), {.rows = 4, .cols = 6});
  EXPECT_THAT(merged.windows, ElementsAre(0, 16, 24));
  EXPECT_EQ(merged.patches[16], 4);  // the third square of the first line is in the second window
  EXPECT_EQ(merged.features[8], 16);
}

// Of some squares: each stays in the window of its place, and windows without any are left out.
TEST(PatchOrder, OfSomeSquares) {
  const std::vector<int32_t> cells = {1, 2, 4, 14};
  const PatchOrder order = patch_order(merging(1, 28), {.rows = 5, .cols = 3}, cells);
  EXPECT_THAT(order.patches, ElementsAre(1, 4, 2, 14));
  EXPECT_THAT(order.features, ElementsAre(0, 2, 1, 3));
  EXPECT_THAT(order.windows, ElementsAre(0, 2, 3, 4));
  const std::vector<int32_t> merged_cells = {2, 3};
  const PatchOrder merged = patch_order(merging(2, 56), {.rows = 4, .cols = 6}, merged_cells);
  EXPECT_THAT(merged.patches, ElementsAre(12, 13, 18, 19, 4, 5, 10, 11));
  EXPECT_THAT(merged.features, ElementsAre(4, 5, 6, 7, 0, 1, 2, 3));
  EXPECT_THAT(merged.windows, ElementsAre(0, 4, 8));
}

TEST(PatchOrder, RotationsAreThoseOfRowAndColumn) {
  std::vector<float> cos(6 * 4), sin(cos.size());
  const Tensor c(cos.data(), DType::kF32, {6, 4}), s(sin.data(), DType::kF32, {6, 4});
  fill_patch_rotations(merging(1, 0), {.rows = 2, .cols = 3}, {5, 4, 3, 2, 1, 0}, c, s);
  EXPECT_FLOAT_EQ(c.row<float>(0)[0], std::cos(1.0f));   // row 1, frequency 1
  EXPECT_FLOAT_EQ(s.row<float>(0)[1], std::sin(0.01f));  // row 1, frequency 10000^(-1/2)
  EXPECT_FLOAT_EQ(c.row<float>(0)[2], std::cos(2.0f));   // column 2
  EXPECT_FLOAT_EQ(s.row<float>(0)[3], std::sin(0.02f));
  EXPECT_FLOAT_EQ(s.row<float>(5)[2], 0.0f);
}

TEST(PatchOrder, TablesAreResampled) {
  std::array<float, 9> table{0, 1, 2, 10, 11, 12, 20, 21, 22};
  const Tensor from(table.data(), DType::kF32, {9, 1});
  const auto resampled = [&](VisionPositions positions, PatchGrid grid) {
    std::vector<float> out(static_cast<size_t>(grid.n()));
    interpolate_positions(from, 3, positions, grid, Tensor(out.data(), DType::kF32, {grid.n(), 1}));
    return out;
  };
  for (const VisionPositions positions : {VisionPositions::kAlignedCorners, VisionPositions::kAlignedEdges})
    EXPECT_THAT(resampled(positions, {.rows = 3, .cols = 3}), testing::ElementsAreArray(table));
  EXPECT_THAT(resampled(VisionPositions::kAlignedCorners, {.rows = 2, .cols = 5}),
              ElementsAre(0, 0.5f, 1, 1.5f, 2, 20, 20.5f, 21, 21.5f, 22));
  EXPECT_THAT(resampled(VisionPositions::kAlignedCorners, {.rows = 1, .cols = 2}), ElementsAre(0, 2));
  EXPECT_THAT(resampled(VisionPositions::kAlignedEdges, {.rows = 1, .cols = 6}),
              testing::Pointwise(testing::FloatEq(), {10.0f, 10.25f, 10.75f, 11.25f, 11.75f, 12.0f}));
  EXPECT_THAT(resampled(VisionPositions::kAlignedEdges, {.rows = 2, .cols = 1}),
              testing::Pointwise(testing::FloatEq(), {3.5f, 18.5f}));
}

}  // namespace
}  // namespace vlcache
