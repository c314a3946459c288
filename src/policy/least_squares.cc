// Coordinate descent, and Cholesky of the smaller of X X^T and X^T X.
#include "policy/least_squares.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/threads.h"
#include "policy/vectors.h"

namespace vlcache {
namespace {

constexpr int kMostSweeps = 200;
constexpr double kLittle = 1e-6;  // of u's largest, in a sweep

size_t at(int64_t i) { return static_cast<size_t>(i); }

// a [n, n] symmetric positive definite becomes its lower factor L.
void factor(std::vector<double>& a, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j <= i; ++j) {
      double sum = a[at(i * n + j)];
      for (int64_t k = 0; k < j; ++k) sum -= a[at(i * n + k)] * a[at(j * n + k)];
      a[at(i * n + j)] = i == j ? std::sqrt(std::max(sum, 1e-300)) : sum / a[at(j * n + j)];
    }
  }
}

// b [n, d] becomes (L L^T)^-1 b.
void solve(const std::vector<double>& l, int64_t n, int64_t d, std::vector<double>& b) {
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t k = 0; k < i; ++k) {
      for (int64_t c = 0; c < d; ++c) b[at(i * d + c)] -= l[at(i * n + k)] * b[at(k * d + c)];
    }
    for (int64_t c = 0; c < d; ++c) b[at(i * d + c)] /= l[at(i * n + i)];
  }
  for (int64_t i = n - 1; i >= 0; --i) {
    for (int64_t k = i + 1; k < n; ++k) {
      for (int64_t c = 0; c < d; ++c) b[at(i * d + c)] -= l[at(k * n + i)] * b[at(k * d + c)];
    }
    for (int64_t c = 0; c < d; ++c) b[at(i * d + c)] /= l[at(i * n + i)];
  }
}

}  // namespace

std::vector<float> bounded_least_squares(std::span<const float> m_t, std::span<const float> s, float least) {
  const auto n = std::ssize(s), t = std::ssize(m_t) / std::max<int64_t>(n, 1);
  std::vector<float> u(at(t), 1.0f), rest(s.begin(), s.end()), norms(at(t));
  for (int64_t j = 0; j < t; ++j) {
    const float* column = m_t.data() + j * n;
    norms[at(j)] = inner_product(column, column, n);
    add_scaled(-1.0f, column, rest.data(), n);
  }
  for (int sweep = 0; sweep < kMostSweeps; ++sweep) {
    float largest = 0, change = 0;
    for (int64_t j = 0; j < t; ++j) {
      if (norms[at(j)] <= 0) continue;
      const float* column = m_t.data() + j * n;
      const float next = std::max(least, u[at(j)] + inner_product(column, rest.data(), n) / norms[at(j)]),
                  step = next - u[at(j)];
      add_scaled(-step, column, rest.data(), n);
      u[at(j)] = next;
      largest = std::max(largest, next);
      change = std::max(change, std::abs(step));
    }
    if (change <= kLittle * largest) break;
  }
  return u;
}

void ridge_least_squares(std::span<const float> x, std::span<const float> y, int64_t n, int64_t t, int64_t d,
                         double ridge, std::span<float> c) {
  CHECK(std::ssize(x) == n * t && std::ssize(y) == n * d && std::ssize(c) == t * d);
  const bool by_rows = n <= t;
  const int64_t m = std::min(n, t);
  // Y - X C0
  std::vector<float> rest(y.begin(), y.end());
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < t; ++j) add_scaled(-x[at(i * t + j)], c.data() + j * d, rest.data() + i * d, d);
  }
  const std::vector<float> columns = by_rows ? std::vector<float>() : transposed(x, n, t);
  const float* rows = by_rows ? x.data() : columns.data();
  const int64_t width = by_rows ? t : n;
  std::vector<double> gram(at(m * m));
  parallel_for(m, [&](int64_t i, int) {
    for (int64_t j = 0; j <= i; ++j) {
      double sum = 0;  // what the ridge adds may be little
      for (int64_t k = 0; k < width; ++k) sum += static_cast<double>(rows[i * width + k]) * rows[j * width + k];
      gram[at(i * m + j)] = sum;
    }
  });
  double trace = 0;
  for (int64_t i = 0; i < m; ++i) trace += gram[at(i * m + i)];
  for (int64_t i = 0; i < m; ++i) gram[at(i * m + i)] += ridge * trace / static_cast<double>(m) + 1e-30;
  factor(gram, m);
  std::vector<double> right(at(m * d));
  if (by_rows) {
    std::ranges::copy(rest, right.begin());
  } else {
    std::vector<float> projected(at(m * d));
    for (int64_t j = 0; j < t; ++j) {
      for (int64_t i = 0; i < n; ++i) add_scaled(rows[j * n + i], rest.data() + i * d, projected.data() + j * d, d);
    }
    std::ranges::copy(projected, right.begin());
  }
  solve(gram, m, d, right);
  if (!by_rows) {
    for (size_t i = 0; i < c.size(); ++i) c[i] += static_cast<float>(right[i]);
    return;
  }
  const std::vector<float> solution(right.begin(), right.end());
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < t; ++j) add_scaled(x[at(i * t + j)], solution.data() + i * d, c.data() + j * d, d);
  }
}

}  // namespace vlcache
