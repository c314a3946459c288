// fit_head: weights of all slots for every query, then two least-squares problems. VLCACHE_FIT_HEAD is the function to
// define.
#pragma once

#include <limits>

#include "policy/attention_fit/fit_head.h"
#include "policy/attention_fit/least_squares-inl.h"

namespace vlcache {
namespace {

using Eigen::MatrixXf, Eigen::VectorXf;
using RowMajor = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Rows = Eigen::Map<const RowMajor>;

constexpr int kSweeps = 30;           // more sweeps did not improve the fit
constexpr double kFirm = 1e-4;        // a ridge that keeps weights near 1 unless a query depends on them
constexpr double kFloatRidge = 1e-4;  // from this ridge on, single precision suffices
constexpr float kLeastWeight = 1e-12f, kLeastSum = std::numeric_limits<float>::min(),
                kUnseen = -std::numeric_limits<float>::infinity();

// [n_queries, n_slots] exp(logit - the row's largest).
MatrixXf weights(const FitHead& h) {
  MatrixXf w = Rows(h.queries, h.n_queries, h.head_dim) * Rows(h.k, h.n_slots, h.head_dim).transpose();
  const int32_t first = *std::ranges::min_element(h.query_positions);
  VectorXf largest = VectorXf::Constant(h.n_queries, kUnseen);
  for (Eigen::Index j = 0; j < w.cols(); ++j) {
    const int32_t at = h.slot_positions[static_cast<size_t>(j)];
    if (!h.bias.empty()) w.col(j).array() += h.bias[static_cast<size_t>(j)];
    const bool all_see = at <= first && h.window == 0;
    for (Eigen::Index i = 0; !all_see && i < w.rows(); ++i) {
      const int32_t position = h.query_positions[static_cast<size_t>(i)];
      if (at > position || (h.window > 0 && at <= position - h.window)) w(i, j) = kUnseen;
    }
    largest = largest.cwiseMax(w.col(j));
  }
  for (Eigen::Index j = 0; j < w.cols(); ++j) w.col(j) = (w.col(j) - largest).array().exp();
  return w;
}

// Rows of weights m [n, t] times u, each row normalised to a sum of 1.
MatrixXf attention(const MatrixXf& m, const VectorXf& u) {
  const MatrixXf x = m * u.asDiagonal();
  const VectorXf sums = x.rowwise().sum().cwiseMax(kLeastSum);
  return sums.cwiseInverse().asDiagonal() * x;
}

}  // namespace

void VLCACHE_FIT_HEAD(const FitHead& h, double ridge, std::span<const int32_t> keep, std::span<float> values,
                      std::span<float> bias) {
  const auto t = static_cast<Eigen::Index>(keep.size());
  const Rows v(h.v, h.n_slots, h.head_dim);
  MatrixXf m(h.n_queries, t), old(t, h.head_dim), y;
  VectorXf sums;
  {
    const MatrixXf all = weights(h);
    sums = all.rowwise().sum();
    y = sums.cwiseMax(kLeastSum).cwiseInverse().asDiagonal() * (all * v);
    for (Eigen::Index j = 0; j < t; ++j) {
      m.col(j) = all.col(keep[static_cast<size_t>(j)]);
      old.row(j) = v.row(keep[static_cast<size_t>(j)]);
    }
  }
  // Three candidates for the weights: those whose sum comes nearest to that of all slots; the solution without the
  // bound, clipped to it; all ones. The candidate whose fitted values have the least error is used.
  const VectorXf none = VectorXf::Ones(t);
  VectorXf cut = ridge_least_squares<float>(m, sums, kFirm, none);
  for (Eigen::Index j = 0; j < t; ++j) {
    cut[j] = m.col(j).maxCoeff() > 0 ? std::max(cut[j], kLeastWeight) : 1.0f;
  }
  const VectorXf bounded = bounded_least_squares(m, sums, kLeastWeight, kSweeps);
  float least = std::numeric_limits<float>::infinity();
  for (const VectorXf* u : {&bounded, &static_cast<const VectorXf&>(cut), &none}) {
    const MatrixXf x = attention(m, *u), fitted = ridge < kFloatRidge ? ridge_least_squares<double>(x, y, ridge, old)
                                                                      : ridge_least_squares<float>(x, y, ridge, old);
    const float error = (x * fitted - y).squaredNorm();
    if (!(error < least)) continue;
    least = error;
    Eigen::Map<RowMajor>(values.data(), t, h.head_dim) = fitted;
    for (Eigen::Index j = 0; j < t; ++j) {
      const auto i = static_cast<size_t>(j);
      bias[i] = (h.bias.empty() ? 0.0f : h.bias[static_cast<size_t>(keep[i])]) + std::log((*u)[j]);
    }
  }
}

}  // namespace vlcache
