// Small least-squares problems, for files that are compiled for an instruction set of their own: all code here is
// inline.
#pragma once

#define EIGEN_DONT_PARALLELIZE  // only base/threads.h runs loops in parallel
#include <Eigen/Cholesky>
#include <Eigen/Core>
#include <algorithm>
#include <cmath>

namespace vlcache {
namespace {

constexpr float kLittle = 1e-6f;  // relative to u's largest, in a sweep

// u [t] >= least that minimises |M u - s|: M [n, t], s [n]. By cyclic coordinate descent from u = 1, until a sweep
// changes little, at most this many sweeps.
inline Eigen::VectorXf bounded_least_squares(const Eigen::MatrixXf& m, const Eigen::VectorXf& s, float least,
                                             int most_sweeps) {
  Eigen::VectorXf u = Eigen::VectorXf::Ones(m.cols()), rest = s - m.rowwise().sum();
  const Eigen::VectorXf norms = m.colwise().squaredNorm();
  for (int sweep = 0; sweep < most_sweeps; ++sweep) {
    float largest = 0, change = 0;
    for (Eigen::Index j = 0; j < m.cols(); ++j) {
      if (norms[j] <= 0) continue;
      const float next = std::max(least, u[j] + m.col(j).dot(rest) / norms[j]), step = next - u[j];
      if (step != 0) rest -= step * m.col(j);
      u[j] = next;
      largest = std::max(largest, next);
      change = std::max(change, std::abs(step));
    }
    if (change <= kLittle * largest) break;
  }
  return u;
}

// C [t, d] that minimises |X C - Y|^2 + ridge |X|_F^2 / min(n, t) |C - C0|^2: X [n, t], Y [n, d]. With fewer rows than
// columns, directions that the rows do not determine stay as in C0. By Cholesky of the smaller of X X^T and X^T X, in
// Scalar: double for a small ridge.
template <typename Scalar>
Eigen::MatrixXf ridge_least_squares(const Eigen::MatrixXf& x, const Eigen::MatrixXf& y, double ridge,
                                    const Eigen::MatrixXf& c0) {
  using Matrix = Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic>;
  const bool by_rows = x.rows() <= x.cols();
  const Matrix a = x.cast<Scalar>(), rest = (y - x * c0).cast<Scalar>();
  Matrix gram = Matrix::Zero(by_rows ? a.rows() : a.cols(), by_rows ? a.rows() : a.cols());
  auto half = gram.template selfadjointView<Eigen::Lower>();
  by_rows ? half.rankUpdate(a) : half.rankUpdate(a.transpose());
  const auto mean = static_cast<double>(gram.trace()) / static_cast<double>(gram.rows());
  gram.diagonal().array() += static_cast<Scalar>(ridge * mean + 1e-30);
  const Eigen::LLT<Matrix> factor(gram);
  const Matrix change =
      by_rows ? Matrix(a.transpose() * factor.solve(rest)) : Matrix(factor.solve(a.transpose() * rest));
  return c0 + change.template cast<float>();
}

}  // namespace
}  // namespace vlcache
