// Which cells of a unit are dropped, against tables made by hand.
#include "model/images/unit_pruning.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <initializer_list>
#include <vector>

namespace vlcache {
namespace {

using testing::ElementsAre;

// A frame of `width` pixels a line, of these grey levels.
Image grey(int64_t width, std::initializer_list<uint8_t> levels) {
  Image image(width, static_cast<int64_t>(levels.size()) / width);
  auto* to = image.rgb.data();
  for (const uint8_t level : levels) to = std::fill_n(to, 3, level);
  return image;
}

std::vector<Image> frames(std::initializer_list<Image> images) { return images; }

TEST(UnitPruning, DropsWhatChangedLeast) {
  const auto before = frames({grey(3, {10, 10, 10, 200, 200, 200})}),
             after = frames({grey(3, {10, 40, 9, 200, 150, 203})});
  // Differences: 0, 30, 1, 0, 50, 3.
  const std::optional<KeptCells> kept = prune_unit(after, before, 1, 0.5);
  ASSERT_TRUE(kept);
  EXPECT_THAT(kept->cells, ElementsAre(1, 4, 5));
  EXPECT_THAT(kept->counts, ElementsAre(1, 1, 1));
  EXPECT_EQ(kept->n_dropped, 3);
  EXPECT_FALSE(kept->weighted);
  EXPECT_THAT(prune_unit(after, before, 1, 2.0 / 3)->cells, ElementsAre(1, 4));
  EXPECT_THAT(prune_unit(after, before, 1, 1)->cells, ElementsAre(4));  // one at least
  EXPECT_THAT(prune_unit(before, after, 1, 0.5)->cells, ElementsAre(1, 4, 5));
}

// 0.7 of ten is seven, though as a float it is less.
TEST(UnitPruning, RoundsTheShare) {
  const auto still = frames({Image(10, 1)});
  EXPECT_EQ(prune_unit(still, still, 1, 0.7f)->n_dropped, 7);
  EXPECT_EQ(prune_unit(still, still, 1, 0.06)->n_dropped, 1);
  EXPECT_FALSE(prune_unit(still, still, 1, 0.04));
  EXPECT_FALSE(prune_unit(still, still, 1, 0));
}

TEST(UnitPruning, KeepsTheFirstOfEqualCells) {
  const auto still = frames({Image(4, 2)});
  EXPECT_THAT(prune_unit(still, still, 1, 0.5)->cells, ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(prune_unit(still, still, 2, 0.5)->cells, ElementsAre(0));
}

// A cell of two frames changed if one of them did; all its pixels count.
TEST(UnitPruning, CountsAllFramesAndPixels) {
  const auto before = frames({grey(4, {0, 0, 0, 0, 0, 0, 0, 0}), grey(4, {0, 0, 0, 0, 0, 0, 0, 0})}),
             after = frames({grey(4, {9, 0, 0, 0, 0, 0, 0, 0}), grey(4, {0, 0, 5, 0, 0, 0, 0, 5})});
  EXPECT_THAT(prune_unit(after, before, 2, 0.5)->cells, ElementsAre(1));  // 10 against 9
  // The last unit has one frame, which stands for two: 9 + 9 against 0 before.
  EXPECT_THAT(prune_unit(std::span(after).first(1), before, 2, 0.5)->cells, ElementsAre(0));
}

TEST(UnitPruning, SettingsDiffer) {
  const auto still = frames({Image(4, 2)});
  EXPECT_NE(prune_unit(still, still, 1, 0.5)->setting, prune_unit(still, still, 1, 0.51)->setting);
}

}  // namespace
}  // namespace vlcache
