// Bounds of samples with a known answer.
#include "base/numeric/statistics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace vlcache {
namespace {

TEST(Statistics, EmptyInputsAreFinite) {
  EXPECT_EQ(mean({}), 0);
  EXPECT_EQ(paired_loss_at_most(0, 0, 0, 0.95), 1);
  EXPECT_EQ(quantile({}, 0.5), 0);
}

// numpy.quantile.
TEST(Statistics, QuantilesInterpolateBetweenNeighbours) {
  const std::vector<float> one{3}, even{1, 2, 4, 8}, odd{-1, 0, 10};
  for (const double p : {0.0, 0.3, 1.0}) EXPECT_EQ(quantile(one, p), 3);
  EXPECT_DOUBLE_EQ(quantile(even, 0), 1);
  EXPECT_DOUBLE_EQ(quantile(even, 0.5), 3);
  EXPECT_DOUBLE_EQ(quantile(even, 0.9), 6.8);
  EXPECT_DOUBLE_EQ(quantile(even, 1), 8);
  EXPECT_DOUBLE_EQ(quantile(odd, 0.25), -0.5);
  EXPECT_DOUBLE_EQ(quantile(odd, 0.999), 9.98);
}

// scipy.stats.beta.ppf.
TEST(Statistics, BetaQuantileMatchesScipy) {
  struct Row {
    double p, a, b, x;
  };
  for (const Row& r : {Row{0.5, 0.5, 0.5, 0.5}, Row{0.05, 0.5, 50, 3.95177145457051e-05},
                       Row{0.95, 1.5, 300.5, 0.012908052684470142}, Row{0.95, 2.68, 397.3, 0.014492127521998754},
                       Row{0.01, 100, 3, 0.9201343077908647}, Row{0.999, 0.01, 10, 0.14664996048547319}}) {
    EXPECT_NEAR(beta_quantile(r.p, r.a, r.b), r.x, 1e-9 * r.x) << r.p << " " << r.a << " " << r.b;
    EXPECT_NEAR(beta_distribution(r.x, r.a, r.b), r.p, 1e-9);
  }
  EXPECT_DOUBLE_EQ(beta_distribution(0.3, 1, 1), 0.3);  // uniform
  EXPECT_DOUBLE_EQ(beta_distribution(-1, 2, 3), 0);
  EXPECT_DOUBLE_EQ(beta_distribution(2, 2, 3), 1);
}

// By hand: no event in n trials has the bound 1 - 0.05^(1 / n). The others: scipy.
TEST(Statistics, ClopperPearsonBoundsMatchATable) {
  for (const double n : {1, 10, 298, 299, 100000}) {
    EXPECT_NEAR(share_at_most(0, n, 0.95), 1 - std::pow(0.05, 1 / n), 1e-12);
    EXPECT_NEAR(share_at_least(n, n, 0.95), std::pow(0.05, 1 / n), 1e-12);
    EXPECT_EQ(share_at_least(0, n, 0.95), 0);
    EXPECT_EQ(share_at_most(n, n, 0.95), 1);
  }
  struct Row {
    double n_hits, n, most, least;
  };
  for (const Row& r :
       {Row{1, 10, 0.39416330243650466, 0.005116196891823701}, Row{5, 10, 0.7775588989918706, 0.2224411010081294},
        Row{1, 472, 0.010010788208807353, 0.00010866632925861285},
        Row{1, 473, 0.009989707474224693, 0.00010843660317543822},
        Row{2, 627, 0.010006795807608939, 0.0005670564608060608},
        Row{2, 628, 0.00999091592989448, 0.0005661530403869451}, Row{7, 141, 0.09122281530030035, 0.02352893785290848},
        Row{500, 1000, 0.5264822687643087, 0.47351773123569124}, Row{999, 1000, 0.999948708021091, 0.9952650064245002},
        Row{2, 1000000, 6.295780099210489e-06, 3.553616252385987e-07}}) {
    EXPECT_NEAR(share_at_most(r.n_hits, r.n, 0.95), r.most, 1e-8 * r.most) << r.n_hits << " of " << r.n;
    EXPECT_NEAR(share_at_least(r.n_hits, r.n, 0.95), r.least, 1e-8 * r.least) << r.n_hits << " of " << r.n;
  }
  EXPECT_EQ(share_at_most(0, 0, 0.95), 1);
  EXPECT_EQ(share_at_least(0, 0, 0.95), 0);
}

// Looked at after every tenth trial, the bound fails in at most 5 % of the runs; one that is valid once fails more
// often.
TEST(Statistics, TheBoundForManyLooksHoldsAtAllOfThem) {
  EXPECT_NEAR(share_at_most_at_any_time(0, 100, 0.95, 0.01), 1 - std::pow(0.05 * 100 / 200, 0.01), 1e-9);  // by hand
  EXPECT_EQ(share_at_most_at_any_time(0, 0, 0.95, 0.01), 1);
  EXPECT_EQ(share_at_most_at_any_time(3, 3, 0.95, 0.01), 1);
  constexpr double kShare = 0.03, kLimit = 0.01;
  constexpr int kRuns = 400, kTrials = 600;
  std::mt19937 random(5);
  std::bernoulli_distribution event(kShare);
  int n_below = 0, n_below_once = 0;
  for (int run = 0; run < kRuns; ++run) {
    int hits = 0;
    bool below = false, below_once = false;
    for (int n = 1; n <= kTrials; ++n) {
      hits += event(random) ? 1 : 0;
      if (n % 10 != 0) continue;
      below = below || share_at_most_at_any_time(hits, n, 0.95, kLimit) < kShare;
      below_once = below_once || share_at_most(hits, n, 0.95) < kShare;
    }
    n_below += below ? 1 : 0;
    n_below_once += below_once ? 1 : 0;
  }
  EXPECT_LE(n_below, kRuns / 20);
  EXPECT_GT(n_below_once, kRuns / 10);
}

TEST(Statistics, NormalQuantileMatchesATable) {
  EXPECT_NEAR(normal_quantile(0.95), 1.6448536269514722, 1e-9);
  EXPECT_NEAR(normal_quantile(0.5), 0, 1e-9);
  EXPECT_NEAR(normal_quantile(0.01), -2.3263478740408408, 1e-9);
}

// By hand: without a difference, -z^2 / (n + z^2). The others: the same score, maximised numerically with scipy.
TEST(Statistics, PairedGainMatchesTangosInterval) {
  EXPECT_NEAR(paired_gain_at_least(0, 0, 100, 0.95), -2.705543454095404 / 102.705543454095404, 1e-9);
  struct Row {
    double gained, lost, n, least;
  };
  for (const Row& r : {Row{0, 0, 268, -0.009994415002794734}, Row{2, 3, 629, -0.009071610595370516},
                       Row{10, 4, 141, -0.0011992239782691104}, Row{0, 7, 141, -0.08911069100177688},
                       Row{5, 0, 50, 0.0435334952559271}, Row{12, 12, 300, -0.028080678369140605}}) {
    EXPECT_NEAR(paired_gain_at_least(r.gained, r.lost, r.n, 0.95), r.least, 1e-6) << r.gained << " " << r.lost;
  }
  EXPECT_EQ(paired_gain_at_least(0, 0, 0, 0.95), -1);
}

// Where Tango's interval is narrower than so few samples allow, or negative, the exact bound of no loss holds.
TEST(Statistics, PairedLossIsNeverSurerThanNoLossAtAll) {
  for (const double n : {1, 10, 58, 59, 1000}) {
    EXPECT_NEAR(paired_loss_at_most(0, 0, n, 0.95), 1 - std::pow(0.05, 1 / n), 1e-9) << n;
    EXPECT_NEAR(paired_loss_at_most(n / 2, 0, n, 0.95), 1 - std::pow(0.05, 1 / n), 1e-9) << n;
  }
  EXPECT_DOUBLE_EQ(paired_loss_at_most(2, 3, 629, 0.95), -paired_gain_at_least(2, 3, 629, 0.95));
}

}  // namespace
}  // namespace vlcache
