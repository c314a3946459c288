#include "engine/prompt/prompt_images.h"

#include <gtest/gtest.h>

namespace vlcache {
namespace {

const std::vector<Sha256Digest> kKeys{{{1}}, {{2}}, {{3}}};

TEST(PromptImages, TilesWithWordsBetweenThemAreOneImage) {
  const std::vector<ImageSpan> spans{{.begin = 2, .end = 6, .image = 0, .first_row = 0},
                                     {.begin = 7, .end = 10, .image = 0, .first_row = 4},
                                     {.begin = 12, .end = 13, .image = 1, .first_row = 0}};
  const PromptImages images = list_images(spans, kKeys);
  ASSERT_EQ(images.size(), 3u);
  EXPECT_EQ(images[0].key, kKeys[0]);
  EXPECT_EQ(images[0].begin(), 2);
  EXPECT_EQ(images[0].end(), 10);
  EXPECT_EQ(images[0].n_tokens, 7);
  EXPECT_TRUE(images[0].whole(7));
  EXPECT_FALSE(images[0].whole(8));
  EXPECT_EQ(images[0].n_tokens_from(0), 7);
  EXPECT_EQ(images[0].n_tokens_from(5), 4);
  EXPECT_EQ(images[0].n_tokens_from(6), 3);
  EXPECT_EQ(images[0].n_tokens_from(10), 0);
  std::vector<std::pair<int32_t, int32_t>> tokens;
  images[0].for_each_token([&](int32_t token, int32_t row) { tokens.emplace_back(token, row); });
  EXPECT_EQ(tokens, (std::vector<std::pair<int32_t, int32_t>>{{2, 0}, {3, 1}, {4, 2}, {5, 3}, {7, 4}, {8, 5}, {9, 6}}));
  // A policy has dropped all tokens of the last image.
  EXPECT_EQ(images[2].n_tokens, 0);
  EXPECT_EQ(images[2].end(), 0);
  EXPECT_FALSE(images[2].whole(4));
}

TEST(PromptImages, AnImageOfChosenRowsIsNotWhole) {
  const std::vector<ImageSpan> spans{{.begin = 0, .end = 2, .image = 0, .first_row = 0, .rows = {1, 3}},
                                     {.begin = 2, .end = 4, .image = 1, .first_row = 2}};
  const PromptImages images = list_images(spans, std::span(kKeys).first(2));
  EXPECT_FALSE(images[0].whole(2));
  EXPECT_FALSE(images[1].whole(2));  // its first rows are missing
}

// Two units of a video that share a beginning, then a text and an image.
TEST(PromptImages, UnitsOfVideosLieElsewhere) {
  const std::vector<ImageSpan> spans{{.begin = 1, .end = 3, .image = 0, .first_row = 0},
                                     {.begin = 3, .end = 5, .image = 1, .first_row = 0},
                                     {.begin = 6, .end = 8, .image = 2, .first_row = 0}};
  const auto positions = [](int32_t t) {
    return std::vector<Position>{{0, 0, 0},     {1, 1, 1},        {1, 1, 2},         {1 + t, 1, 1},
                                 {1 + t, 1, 2}, Position::all(9), Position::all(10), {10, 10, 11}};
  };
  const PromptImages at_2 = list_images(spans, kKeys, positions(2)), at_5 = list_images(spans, kKeys, positions(5)),
                     by_index = list_images(spans, kKeys);
  for (const PromptImages* images : {&at_2, &at_5, &by_index}) {
    for (const size_t i : {0, 2}) EXPECT_EQ(placed_content((*images)[i], kKeys[i]), kKeys[i]);
  }
  EXPECT_EQ(at_2[1].offset, (Position{0, -2, -2}));  // from 3, after the largest component of the first
  EXPECT_NE(placed_content(at_2[1], kKeys[1]), kKeys[1]);
  EXPECT_NE(placed_content(at_2[1], kKeys[1]), placed_content(at_5[1], kKeys[1]));
  EXPECT_EQ(placed_content(by_index[1], kKeys[1]), kKeys[1]);
}

}  // namespace
}  // namespace vlcache
