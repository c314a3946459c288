// Intervals of samples with a known answer.
#include "analysis/statistics.h"

#include <gtest/gtest.h>

#include <vector>

namespace vlcache {
namespace {

TEST(Statistics, IntervalMatchesTheNormalApproximation) {
  std::vector<double> scores(400);
  for (size_t i = 0; i < scores.size(); ++i) scores[i] = i % 4 == 0 ? 0.0 : 1.0;  // mean 0.75, deviation 0.433
  const Interval interval = mean_interval(scores, 1);
  EXPECT_DOUBLE_EQ(mean(scores), 0.75);
  EXPECT_NEAR(interval.low, 0.75 - 1.96 * 0.433 / 20, 0.006);
  EXPECT_NEAR(interval.high, 0.75 + 1.96 * 0.433 / 20, 0.006);
  const Interval again = mean_interval(scores, 1);
  EXPECT_EQ(interval.low, again.low);
}

// Both fail on the same samples: in pairs, their equality is certain.
TEST(Statistics, RatioResamplesPairsTogether) {
  std::vector<double> a(100), b(100);
  for (size_t i = 0; i < a.size(); ++i) a[i] = b[i] = i % 2 == 0 ? 1.0 : 0.0;
  const Interval ratio = ratio_interval(a, b, 3);
  EXPECT_EQ(ratio.low, 1);
  EXPECT_EQ(ratio.high, 1);
  a[0] = 0;
  EXPECT_LT(ratio_interval(a, b, 3).low, 1);
  EXPECT_EQ(ratio_interval(a, b, 3).high, 1);
}

TEST(Statistics, EmptyAndZeroInputsAreFinite) {
  EXPECT_EQ(mean({}), 0);
  EXPECT_EQ(mean_interval({}, 0).high, 0);
  const std::vector<double> zeros(5);
  EXPECT_EQ(ratio_interval(zeros, zeros, 0).low, 1);
}

}  // namespace
}  // namespace vlcache
