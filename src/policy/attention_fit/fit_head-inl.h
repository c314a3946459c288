// fit_head: weights of all slots for every query, then two least-squares problems. VLCACHE_FIT_HEAD is the function to
// define.
#pragma once

#include <array>
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
constexpr double kFloatRidge = 1e-4;  // from this ridge on values stay near, and single precision suffices
constexpr float kLeastWeight = 1e-12f, kLeastSum = std::numeric_limits<float>::min(),
                kUnseen = -std::numeric_limits<float>::infinity();

constexpr Eigen::Index kBlock = 256;  // slots whose weights for all queries stay in the second-level cache
// Smaller than any logit, and finite: what a query does not see weighs 0.
constexpr float kLowest = std::numeric_limits<float>::lowest();

// Adds the slots' biases to the logits [n_queries, n] of n slots, and hides those that a query does not see.
// slot_of(j): the slot of column j.
void restrict_logits(const FitHead& h, const auto& slot_of, MatrixXf& logits) {
  const int32_t first = *std::ranges::min_element(h.query_places);
  for (Eigen::Index j = 0; j < logits.cols(); ++j) {
    const size_t slot = slot_of(j);
    const int32_t at = h.slot_places[slot];
    if (!h.bias.empty()) logits.col(j).array() += h.bias[slot];
    const bool all_see = at <= first && h.window == 0;
    for (Eigen::Index i = 0; !all_see && i < logits.rows(); ++i) {
      const int32_t position = h.query_places[static_cast<size_t>(i)];
      if (at > position || (h.window > 0 && at <= position - h.window)) logits(i, j) = kUnseen;
    }
  }
}

// What the queries get from all slots.
struct Whole {
  VectorXf largest;  // [n_queries] logit
  VectorXf sums;     // [n_queries] of exp(logit - largest)
  MatrixXf output;   // [n_queries, head_dim]
};

// Block by block: the weights of all slots together are larger than the caches.
Whole attend_to_all(const FitHead& h) {
  const Rows q(h.queries, h.n_queries, h.head_dim);
  Whole all{.largest = VectorXf::Constant(h.n_queries, kLowest),
            .sums = VectorXf::Zero(h.n_queries),
            .output = MatrixXf::Zero(h.n_queries, h.head_dim)};
  MatrixXf w;
  VectorXf scale;
  for (Eigen::Index begin = 0; begin < h.n_slots; begin += kBlock) {
    const Eigen::Index n = std::min(kBlock, h.n_slots - begin);
    const Rows k(h.k + begin * h.head_dim, n, h.head_dim), v(h.v + begin * h.head_dim, n, h.head_dim);
    w.noalias() = q * k.transpose();
    restrict_logits(
        h, [begin](Eigen::Index j) { return static_cast<size_t>(begin + j); }, w);
    scale = all.largest;
    all.largest = all.largest.cwiseMax(w.rowwise().maxCoeff());
    scale = (scale - all.largest).array().exp();
    all.sums.array() *= scale.array();
    all.output.array().colwise() *= scale.array();
    for (Eigen::Index j = 0; j < n; ++j) w.col(j) = (w.col(j) - all.largest).array().exp();
    all.sums += w.rowwise().sum();
    all.output.noalias() += w * v;
  }
  all.output.array().colwise() /= all.sums.cwiseMax(kLeastSum).array();
  return all;
}

// [n_queries, keep.size()] exp(logit - the row's largest of all slots).
MatrixXf kept_weights(const FitHead& h, const Whole& all, std::span<const int32_t> keep) {
  RowMajor k(static_cast<Eigen::Index>(keep.size()), h.head_dim);
  for (Eigen::Index j = 0; j < k.rows(); ++j) {
    k.row(j) = Rows(h.k, h.n_slots, h.head_dim).row(keep[static_cast<size_t>(j)]);
  }
  MatrixXf m = Rows(h.queries, h.n_queries, h.head_dim) * k.transpose();
  restrict_logits(
      h, [keep](Eigen::Index j) { return static_cast<size_t>(keep[static_cast<size_t>(j)]); }, m);
  for (Eigen::Index j = 0; j < m.cols(); ++j) m.col(j) = (m.col(j) - all.largest).array().exp();
  return m;
}

// Rows of weights m [n, t] times u, each row normalised to a sum of 1.
MatrixXf attention(const MatrixXf& m, const VectorXf& u) {
  const MatrixXf x = m * u.asDiagonal();
  const VectorXf sums = x.rowwise().sum().cwiseMax(kLeastSum);
  return sums.cwiseInverse().asDiagonal() * x;
}

// The weights [t] of kept slots whose sum comes nearest to that of all slots, without a bound, then clipped to it.
VectorXf clipped_weights(const MatrixXf& m, const VectorXf& sums) {
  VectorXf u = ridge_least_squares<float>(m, sums, kFirm, VectorXf::Ones(m.cols()));
  for (Eigen::Index j = 0; j < m.cols(); ++j) u[j] = m.col(j).maxCoeff() > 0 ? std::max(u[j], kLeastWeight) : 1.0f;
  return u;
}

struct Fitted {
  VectorXf u;       // [t] weights
  MatrixXf values;  // [t, head_dim]
};

// Values are drawn to the old ones. Of two candidates for the weights, those whose sum comes nearest to that of all
// slots and all ones, the one with the least error of the old values' output is fitted. Fitting all three of
// fit_freely() took four solutions instead of one and left 6 to 8 % less error (squared, all heads together; pages of
// tinydoc and wordpage, 5 and 10 %).
Fitted fit_near(const MatrixXf& m, const Whole& all, double ridge, const MatrixXf& old) {
  const auto error = [&](const VectorXf& u) {
    const VectorXf sums = (m * u).cwiseMax(kLeastSum);
    const MatrixXf output = sums.cwiseInverse().asDiagonal() * (m * (u.asDiagonal() * old));
    return (output - all.output).squaredNorm();
  };
  Fitted best{.u = bounded_least_squares(m, all.sums, kLeastWeight, kSweeps), .values = {}};
  const VectorXf ones = VectorXf::Ones(m.cols());
  if (!(error(best.u) < error(ones))) best.u = ones;
  best.values = ridge_least_squares<float>(attention(m, best.u), all.output, ridge, old);
  return best;
}

// Values are free, so the old ones say little about a candidate: each is fitted, and the one with the least error used.
Fitted fit_freely(const MatrixXf& m, const Whole& all, double ridge, const MatrixXf& old) {
  const std::array<VectorXf, 3> candidates{bounded_least_squares(m, all.sums, kLeastWeight, kSweeps),
                                           clipped_weights(m, all.sums), VectorXf::Ones(m.cols())};
  Fitted best;
  float least = std::numeric_limits<float>::infinity();
  for (const VectorXf& u : candidates) {
    const MatrixXf x = attention(m, u);
    MatrixXf values = ridge_least_squares<double>(x, all.output, ridge, old);
    const float error = (x * values - all.output).squaredNorm();
    if (best.u.size() > 0 && !(error < least)) continue;
    least = error;
    best = {.u = u, .values = std::move(values)};
  }
  return best;
}

}  // namespace

void VLCACHE_FIT_HEAD(const FitHead& h, double ridge, std::span<const int32_t> keep, std::span<float> values,
                      std::span<float> bias) {
  const auto t = static_cast<Eigen::Index>(keep.size());
  const Whole all = attend_to_all(h);
  const MatrixXf m = kept_weights(h, all, keep);
  MatrixXf old(t, h.head_dim);
  for (Eigen::Index j = 0; j < t; ++j) {
    old.row(j) = Rows(h.v, h.n_slots, h.head_dim).row(keep[static_cast<size_t>(j)]);
  }
  const Fitted fitted = ridge < kFloatRidge ? fit_freely(m, all, ridge, old) : fit_near(m, all, ridge, old);
  Eigen::Map<RowMajor>(values.data(), t, h.head_dim) = fitted.values;
  for (Eigen::Index j = 0; j < t; ++j) {
    const auto i = static_cast<size_t>(j);
    bias[i] = (h.bias.empty() ? 0.0f : h.bias[static_cast<size_t>(keep[i])]) + std::log(fitted.u[j]);
  }
}

}  // namespace vlcache
