// The ranking of tokens by given scores, against hand-computed tables. The scores themselves are tested where a prompt
// is previewed (engine/preview_hooks_test.cc).
#include "reuse/choose/reuse_chooser.h"

#include <gtest/gtest.h>

namespace vlcache {
namespace {

constexpr size_t kTokens = 25, kSecondImage = 10;

struct Scored {
  size_t layer, head, token;
  float score;
};

// Of 6 layers with 2 heads, the first two not looked at; tokens 0 to 9 are one image, 10 to 24 another.
std::vector<double> rank(std::string_view chooser, std::initializer_list<Scored> scored, int32_t n_wanted,
                         const std::vector<int32_t>& chosen = {}) {
  std::vector<std::vector<float>> layers(2);
  layers.resize(6, std::vector<float>(2 * kTokens, 0.0f));
  for (const Scored& s : scored) layers[s.layer][s.head * kTokens + s.token] = s.score;
  std::vector<size_t> images(kTokens, 1);
  std::fill_n(images.begin(), kSecondImage, size_t{0});
  return parse_reuse_chooser(chooser)->rank(
      {.layers = layers, .images = images, .n_wanted = n_wanted, .chosen = chosen});
}

TEST(ReuseChooser, AskedSelectsThreeOfSixByOneHeadAndTheRestByAll) {
  // Squares point at token 14 although all heads together attend more to token 5; 57 % of 6 are 3. A token takes the
  // score of the one after it and of the four before it, but not across the edge of an image: 9 gets no score from 10.
  const std::vector<double> expected = {0,     0,     0,     0, 4, 4, 4, 4, 4, 4, 1.5, 1.5, 1.5,
                                        3 + 5, 3 + 5, 3 + 5, 3, 3, 3, 2, 2, 2, 2, 2,   2};
  EXPECT_EQ(rank("asked",
                 {{.layer = 2, .head = 0, .token = 5, .score = 1},
                  {.layer = 2, .head = 1, .token = 5, .score = 1},
                  {.layer = 4, .head = 0, .token = 5, .score = 1},
                  {.layer = 5, .head = 1, .token = 5, .score = 1},
                  {.layer = 3, .head = 0, .token = 10, .score = 1.5},
                  {.layer = 3, .head = 1, .token = 14, .score = 3},
                  {.layer = 4, .head = 0, .token = 20, .score = 2}},
                 /*n_wanted=*/6),
            expected);
}

TEST(ReuseChooser, AskedContinuesNearPointedTokens) {
  // 8 tokens by squares: 11 to 16, then the first two of those at most six away.
  std::vector<double> expected(kTokens, 0);
  for (size_t i = 11; i <= 16; ++i) expected[i] = 2 + 3;
  expected[10] = expected[17] = 3;
  EXPECT_EQ(rank("asked:pointed=1", {{.layer = 3, .head = 1, .token = 12, .score = 2}}, 8), expected);
}

TEST(ReuseChooser, AskedPointsAtTokensThatAreNotChosenYet) {
  std::vector<int32_t> chosen(kTokens, 0);
  std::fill(chosen.begin() + 11, chosen.begin() + 14, 6);
  std::vector<double> expected(kTokens, 0);
  for (size_t i = 11; i <= 16; ++i) expected[i] = 2;
  for (const size_t i : {size_t{14}, size_t{15}, size_t{16}, size_t{10}}) expected[i] += 3;
  EXPECT_EQ(rank("asked:pointed=1", {{.layer = 3, .head = 1, .token = 12, .score = 2}}, 4, chosen), expected);
}

TEST(ReuseChooser, OtherChoosersUseTheSums) {
  std::vector<double> expected(kTokens, 0);
  expected[7] = 3, expected[20] = 2.5;
  for (const std::string_view name : {"cacheblend", "kvshare"}) {
    EXPECT_EQ(rank(name,
                   {{.layer = 2, .head = 0, .token = 7, .score = 1},
                    {.layer = 5, .head = 1, .token = 7, .score = 2},
                    {.layer = 2, .head = 1, .token = 20, .score = 2.5}},
                   1),
              expected);
  }
}

}  // namespace
}  // namespace vlcache
