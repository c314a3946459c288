// Solutions are checked by their optimality conditions: the gradient is 0, or points beyond the bound.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "policy/attention_fit/least_squares-inl.h"

namespace vlcache {
namespace {

void fill(Matrix<float>& m, uint32_t seed) {
  std::mt19937 random(seed);
  for (int64_t i = 0; i < m.rows; ++i) {
    for (int64_t j = 0; j < m.cols; ++j) m.row(i)[j] = static_cast<float>(random() % 2001) / 1000.0f - 1.0f;
  }
}

void make_positive(Matrix<float>& m, float factor) {
  for (int64_t i = 0; i < m.rows; ++i) {
    for (int64_t j = 0; j < m.cols; ++j) m.row(i)[j] = factor * std::abs(m.row(i)[j]);
  }
}

TEST(BoundedLeastSquares, IsOptimalWithinItsBound) {
  constexpr int64_t n = 40, t = 12;
  Matrix<float> mt(t, n), s(1, n), u(1, t);
  fill(mt, 1), fill(s, 2);
  make_positive(mt, 1), make_positive(s, 4);
  bounded_least_squares(mt, s, 0.01f, 200, u);
  int n_bound = 0;
  for (int64_t j = 0; j < t; ++j) {
    double gradient = 0, norm = 0;
    for (int64_t i = 0; i < n; ++i) {
      double rest = -s.row(0)[i];
      for (int64_t other = 0; other < t; ++other) rest += static_cast<double>(u.row(0)[other] * mt.row(other)[i]);
      gradient += mt.row(j)[i] * rest;
      norm += static_cast<double>(mt.row(j)[i] * s.row(0)[i]);
    }
    ASSERT_GE(u.row(0)[j], 0.01f);
    if (u.row(0)[j] > 0.01f) {
      EXPECT_NEAR(gradient, 0, 1e-3 * norm);
    } else {
      EXPECT_GE(gradient, 0);
      ++n_bound;
    }
  }
  EXPECT_GT(n_bound, 0);
  EXPECT_LT(n_bound, t);
}

// X^T (R - X D) - ridge D = 0 for as many rows as columns, more and fewer, and for more than are factored at once.
template <typename T>
void expect_no_gradient(int64_t n, int64_t t) {
  constexpr int64_t d = 3;
  constexpr double kRidge = 0.05;
  Matrix<float> xt(t, n), rest(n, d), change(t, d);
  fill(xt, 3), fill(rest, 4);
  ridge_least_squares<T>(xt, rest, kRidge, change);
  double squares = 0;
  for (int64_t j = 0; j < t; ++j) {
    for (int64_t i = 0; i < n; ++i) squares += static_cast<double>(xt.row(j)[i] * xt.row(j)[i]);
  }
  const double weight = kRidge * squares / static_cast<double>(std::min(n, t));
  for (int64_t c = 0; c < d; ++c) {
    std::vector<double> left(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i) {
      left[static_cast<size_t>(i)] = rest.row(i)[c];
      for (int64_t j = 0; j < t; ++j)
        left[static_cast<size_t>(i)] -= static_cast<double>(xt.row(j)[i]) * static_cast<double>(change.row(j)[c]);
    }
    for (int64_t j = 0; j < t; ++j) {
      double gradient = -weight * change.row(j)[c];
      for (int64_t i = 0; i < n; ++i) gradient += xt.row(j)[i] * left[static_cast<size_t>(i)];
      EXPECT_NEAR(gradient, 0, 1e-4) << n << " x " << t;
    }
  }
}

TEST(RidgeLeastSquares, HasNoGradient) {
  for (const auto& [n, t] : {std::pair{20, 7}, std::pair{7, 20}, std::pair{8, 8}, std::pair{1, 5}, std::pair{5, 1},
                             std::pair{80, 75}, std::pair{75, 131}}) {
    expect_no_gradient<float>(n, t);
    expect_no_gradient<double>(n, t);
  }
}

TEST(RidgeLeastSquares, UnqueriedRowsKeepTheirValues) {
  Matrix<float> xt(3, 1), rest(1, 2), c(3, 2);
  xt.row(1)[0] = 1;  // one row that depends on the second value alone
  const float old[3][2] = {{1, 2}, {3, 4}, {7, 8}};
  for (int64_t j = 0; j < 3; ++j) std::copy_n(old[j], 2, c.row(j));
  rest.row(0)[0] = 5 - 3, rest.row(0)[1] = 6 - 4;
  ridge_least_squares<double>(xt, rest, 1e-9, c);
  EXPECT_NEAR(c.row(1)[0], 5, 1e-5);
  EXPECT_NEAR(c.row(1)[1], 6, 1e-5);
  for (const int64_t j : {0, 2}) {
    EXPECT_EQ(c.row(j)[0], old[j][0]);
    EXPECT_EQ(c.row(j)[1], old[j][1]);
  }
}

TEST(Exponentials, AreThoseOfTheLibrary) {
  for (float x = 0; x > -86.0f; x -= 0.0137f) {
    const float expected = std::exp(x), found = exp_of(Vector<float>{} + x)[0];
    ASSERT_NEAR(found, expected, 3e-7f * expected) << x;
  }
  EXPECT_EQ(exp_of(Vector<float>{})[0], 1.0f);
  EXPECT_EQ(exp_of(Vector<float>{} - 88.0f)[0], 0.0f);
  EXPECT_EQ(exp_of(Vector<float>{} - std::numeric_limits<float>::infinity())[0], 0.0f);
}

}  // namespace
}  // namespace vlcache
