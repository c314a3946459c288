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

}  // namespace
}  // namespace vlcache
