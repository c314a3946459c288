// Solutions are what makes them solutions: the gradient is 0, or points beyond the bound.
#include "policy/least_squares.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace vlcache {
namespace {

std::vector<float> random_numbers(int64_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<float> x(static_cast<size_t>(n));
  for (float& value : x) value = static_cast<float>(random() % 2001) / 1000.0f - 1.0f;
  return x;
}

TEST(BoundedLeastSquares, IsOptimalWithinItsBound) {
  constexpr int64_t n = 40, t = 12;
  std::vector<float> m_t = random_numbers(n * t, 1), s = random_numbers(n, 2);
  for (float& x : m_t) x = std::abs(x);
  for (float& x : s) x = 4 * std::abs(x);
  const std::vector<float> u = bounded_least_squares(m_t, s, 0.01f);
  int n_bound = 0;
  for (int64_t j = 0; j < t; ++j) {
    double gradient = 0, norm = 0;
    for (int64_t i = 0; i < n; ++i) {
      double rest = -s[static_cast<size_t>(i)];
      for (int64_t k = 0; k < t; ++k) rest += m_t[static_cast<size_t>(k * n + i)] * u[static_cast<size_t>(k)];
      gradient += rest * m_t[static_cast<size_t>(j * n + i)];
      norm += std::abs(m_t[static_cast<size_t>(j * n + i)] * s[static_cast<size_t>(i)]);
    }
    ASSERT_GE(u[static_cast<size_t>(j)], 0.01f);
    if (u[static_cast<size_t>(j)] > 0.01f) {
      EXPECT_NEAR(gradient, 0, 1e-3 * norm);
    } else {
      EXPECT_GE(gradient, 0);
      ++n_bound;
    }
  }
  EXPECT_GT(n_bound, 0);
  EXPECT_LT(n_bound, t);
}

// X^T (X C - Y) + ridge (C - C0) = 0 for as many rows as columns, more and fewer.
TEST(RidgeLeastSquares, HasNoGradient) {
  constexpr int64_t d = 3;
  for (const auto& [n, t] : {std::pair{20, 7}, std::pair{7, 20}, std::pair{8, 8}, std::pair{1, 5}, std::pair{5, 1}}) {
    const std::vector<float> x = random_numbers(n * t, 3), y = random_numbers(n * d, 4), c0 = random_numbers(t * d, 5);
    std::vector<float> c = c0;
    constexpr double kRidge = 0.05;
    ridge_least_squares(x, y, n, t, d, kRidge, c);
    double squares = 0;
    for (const float v : x) squares += double{v} * v;
    const double weight = kRidge * squares / std::min(n, t);
    for (int64_t j = 0; j < t; ++j) {
      for (int64_t k = 0; k < d; ++k) {
        double gradient = weight * (c[static_cast<size_t>(j * d + k)] - c0[static_cast<size_t>(j * d + k)]);
        for (int64_t i = 0; i < n; ++i) {
          double rest = -y[static_cast<size_t>(i * d + k)];
          for (int64_t l = 0; l < t; ++l) rest += x[static_cast<size_t>(i * t + l)] * c[static_cast<size_t>(l * d + k)];
          gradient += rest * x[static_cast<size_t>(i * t + j)];
        }
        EXPECT_NEAR(gradient, 0, 1e-4) << n << " x " << t;
      }
    }
  }
}

TEST(RidgeLeastSquares, LeavesWhatNobodyAsksAbout) {
  const std::vector<float> x{0, 1, 0}, y{5, 6};  // one row that looks at the second value alone
  std::vector<float> c{1, 2, 3, 4, 7, 8};
  ridge_least_squares(x, y, 1, 3, 2, 1e-9, c);
  EXPECT_NEAR(c[2], 5, 1e-5);
  EXPECT_NEAR(c[3], 6, 1e-5);
  EXPECT_EQ((std::vector<float>{c[0], c[1], c[4], c[5]}), (std::vector<float>{1, 2, 7, 8}));
}

}  // namespace
}  // namespace vlcache
