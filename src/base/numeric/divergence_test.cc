// Distributions whose divergence can be computed by hand.
#include "base/numeric/divergence.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/error.h"

namespace vlcache {
namespace {

// Logits that differ from the logarithms by a constant.
TokenDistribution of(std::vector<float> shares) {
  for (float& x : shares) x = std::log(x) + 3;
  return TokenDistribution(shares);
}

TEST(Divergence, FiguresMatchAHandComputedTable) {
  const TokenDistribution half = of({0.5f, 0.25f, 0.25f}), other = of({0.25f, 0.5f, 0.25f}), even = of({0.5f, 0.5f}),
                          uneven = of({0.75f, 0.25f});
  TokenDivergences found;
  found.add(half, other);   // 1/2 ln 2 - 1/4 ln 2, and another likeliest token
  found.add(half, half);    // 0
  found.add(even, uneven);  // 1/2 ln (2/3) + 1/2 ln 2; the first of equals is the likeliest
  const double first = std::log(2.0) / 4, third = std::log(4.0 / 3) / 2;
  ASSERT_EQ(found.kl.size(), 3u);
  EXPECT_NEAR(found.kl[0], first, 1e-6);
  EXPECT_EQ(found.kl[1], 0);
  EXPECT_NEAR(found.kl[2], third, 1e-6);
  const DivergenceFigures f = figures(found);
  EXPECT_EQ(f.n_tokens, 3);
  EXPECT_NEAR(f.mean, (first + third) / 3, 1e-6);
  EXPECT_NEAR(f.median, third, 1e-6);
  EXPECT_NEAR(f.p999, third + 0.998 * (first - third), 1e-6);  // place 1.998 of 0, third, first
  EXPECT_DOUBLE_EQ(f.same_top, 2.0 / 3);
  EXPECT_NEAR(divergence(uneven.log_p, even.log_p), 0.75 * std::log(1.5) - 0.25 * std::log(2.0), 1e-6) << "p first";
}

TEST(Divergence, FiguresOfAThousandTokens) {
  TokenDivergences found;
  found.n_same_top = 999;
  for (int i = 0; i < 1001; ++i) found.kl.push_back(static_cast<float>(i * 8 % 1001));  // 0 .. 1000, mixed
  const DivergenceFigures f = figures(found);
  EXPECT_DOUBLE_EQ(f.mean, 500);
  EXPECT_DOUBLE_EQ(f.median, 500);
  EXPECT_DOUBLE_EQ(f.p999, 999);
  EXPECT_DOUBLE_EQ(f.same_top, 999.0 / 1001);
  EXPECT_EQ(figures({}).n_tokens, 0);
  EXPECT_EQ(figures({}).same_top, 0);
}

TEST(Divergence, TheOrderOfTokensChangesNoBit) {
  TokenDivergences found;
  for (int i = 1; i < 200; ++i) found.kl.push_back(1.0f / static_cast<float>(i * i));
  const DivergenceFigures f = figures(found);
  std::ranges::reverse(found.kl);
  EXPECT_EQ(figures(found).mean, f.mean);
  EXPECT_EQ(figures(found).p999, f.p999);
}

// Rounded to float, the log probabilities of both tokens are equal; the logits are not.
TEST(Divergence, TheLikeliestTokenIsThatOfTheLogits) {
  std::vector<float> logits(1 << 16, 0.0f);
  logits[1] = std::nextafter(0.0f, 1.0f);
  const TokenDistribution d(logits);
  EXPECT_EQ(d.log_p[0], d.log_p[1]);
  EXPECT_EQ(d.likeliest, 1);
}

// Not a divergence of 0.
TEST(Divergence, LogitsThatAreNotFiniteAreAnError) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity()}) {
    for (const size_t at : {0, 2}) {
      std::vector<float> logits(3, 1.0f);
      logits[at] = bad;
      EXPECT_THROW(TokenDistribution{logits}, Error) << bad << " " << at;
    }
  }
}

}  // namespace
}  // namespace vlcache
