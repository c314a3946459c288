// Solutions are checked by their optimality conditions: the gradient is 0, or points beyond the bound.
#include <gtest/gtest.h>

#include <random>

#include "policy/attention_fit/least_squares-inl.h"

namespace vlcache {
namespace {

Eigen::MatrixXf random_numbers(int64_t rows, int64_t columns, uint32_t seed) {
  std::mt19937 random(seed);
  return Eigen::MatrixXf::NullaryExpr(rows, columns,
                                      [&] { return static_cast<float>(random() % 2001) / 1000.0f - 1.0f; });
}

TEST(BoundedLeastSquares, IsOptimalWithinItsBound) {
  constexpr int64_t n = 40, t = 12;
  const Eigen::MatrixXf m = random_numbers(n, t, 1).cwiseAbs();
  const Eigen::VectorXf s = 4 * random_numbers(n, 1, 2).cwiseAbs();
  const Eigen::VectorXf u = bounded_least_squares(m, s, 0.01f, 200);
  const Eigen::VectorXf gradient = m.transpose() * (m * u - s), norms = m.transpose() * s;
  int n_bound = 0;
  for (int64_t j = 0; j < t; ++j) {
    ASSERT_GE(u[j], 0.01f);
    if (u[j] > 0.01f) {
      EXPECT_NEAR(gradient[j], 0, 1e-3 * norms[j]);
    } else {
      EXPECT_GE(gradient[j], 0);
      ++n_bound;
    }
  }
  EXPECT_GT(n_bound, 0);
  EXPECT_LT(n_bound, t);
}

// X^T (X C - Y) + ridge (C - C0) = 0 for as many rows as columns, more and fewer.
TEST(RidgeLeastSquares, HasNoGradient) {
  constexpr int64_t d = 3;
  constexpr double kRidge = 0.05;
  for (const auto& [n, t] : {std::pair{20, 7}, std::pair{7, 20}, std::pair{8, 8}, std::pair{1, 5}, std::pair{5, 1}}) {
    const Eigen::MatrixXf x = random_numbers(n, t, 3), y = random_numbers(n, d, 4), c0 = random_numbers(t, d, 5),
                          c = ridge_least_squares<float>(x, y, kRidge, c0);
    const float weight = static_cast<float>(kRidge) * x.squaredNorm() / static_cast<float>(std::min(n, t));
    const Eigen::MatrixXf gradient = x.transpose() * (x * c - y) + weight * (c - c0);
    EXPECT_LT(gradient.cwiseAbs().maxCoeff(), 1e-4) << n << " x " << t;
  }
}

TEST(RidgeLeastSquares, UnqueriedRowsKeepTheirValues) {
  Eigen::MatrixXf x(1, 3), y(1, 2), c0(3, 2);
  x << 0, 1, 0;  // one row that depends on the second value alone
  y << 5, 6;
  c0 << 1, 2, 3, 4, 7, 8;
  const Eigen::MatrixXf c = ridge_least_squares<double>(x, y, 1e-9, c0);
  EXPECT_LT((c.row(1) - y).norm(), 1e-5);
  EXPECT_EQ(c.row(0), c0.row(0));
  EXPECT_EQ(c.row(2), c0.row(2));
}

}  // namespace
}  // namespace vlcache
