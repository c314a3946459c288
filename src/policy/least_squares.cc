// Coordinate descent, and Cholesky of the smaller of X X^T and X^T X, in double: what the ridge adds may be little.
#include "policy/least_squares.h"

#include <Eigen/Cholesky>
#include <algorithm>

#include "base/error.h"

namespace vlcache {
namespace {

constexpr int kMostSweeps = 200;
constexpr double kLittle = 1e-6;  // of u's largest, in a sweep

}  // namespace

Eigen::VectorXf bounded_least_squares(const Eigen::MatrixXf& m, const Eigen::VectorXf& s, float least) {
  Eigen::VectorXf u = Eigen::VectorXf::Ones(m.cols()), rest = s - m.rowwise().sum();
  const Eigen::VectorXf norms = m.colwise().squaredNorm();
  for (int sweep = 0; sweep < kMostSweeps; ++sweep) {
    float largest = 0, change = 0;
    for (Eigen::Index j = 0; j < m.cols(); ++j) {
      if (norms[j] <= 0) continue;
      const float next = std::max(least, u[j] + m.col(j).dot(rest) / norms[j]), step = next - u[j];
      rest -= step * m.col(j);
      u[j] = next;
      largest = std::max(largest, next);
      change = std::max(change, std::abs(step));
    }
    if (change <= kLittle * largest) break;
  }
  return u;
}

Eigen::MatrixXf ridge_least_squares(const Eigen::MatrixXf& x, const Eigen::MatrixXf& y, double ridge,
                                    const Eigen::MatrixXf& c0) {
  CHECK(x.rows() == y.rows() && x.cols() == c0.rows() && y.cols() == c0.cols());
  const bool by_rows = x.rows() <= x.cols();
  const Eigen::MatrixXd a = x.cast<double>(), rest = (y - x * c0).cast<double>();
  Eigen::MatrixXd gram = by_rows ? Eigen::MatrixXd(a * a.transpose()) : Eigen::MatrixXd(a.transpose() * a);
  gram.diagonal().array() += ridge * gram.trace() / static_cast<double>(gram.rows()) + 1e-30;
  const Eigen::LLT<Eigen::MatrixXd> factor(gram);
  const Eigen::MatrixXd change = by_rows ? Eigen::MatrixXd(a.transpose() * factor.solve(rest))
                                         : Eigen::MatrixXd(factor.solve(a.transpose() * rest));
  return c0 + change.cast<float>();
}

}  // namespace vlcache
