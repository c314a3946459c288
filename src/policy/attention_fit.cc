// Weights of all slots for every query, then two least squares.
#include "policy/attention_fit.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/buffer.h"
#include "base/threads.h"
#include "policy/least_squares.h"

namespace vlcache {
namespace {

using Eigen::MatrixXf, Eigen::VectorXf;
using Rows = Eigen::Map<const Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>;

constexpr double kFirm = 1e-9;  // a ridge that is none
constexpr float kLeastWeight = 1e-12f, kLeastSum = std::numeric_limits<float>::min(),
                kUnseen = -std::numeric_limits<float>::infinity();

// A kv head's slots and the queries it is fitted to.
struct Head {
  Rows k, v;                                // [n_slots, d]
  MatrixXf queries;                         // [n_queries, d], scaled
  std::vector<int32_t> positions;           // [n_queries]
  std::span<const int32_t> slot_positions;  // [n_slots]
  std::span<const float> bias;              // [n_slots] or none
  int32_t window = 0;                       // > 0: a query sees positions > its own - window only
};

void take_queries(const LayerCapture& seen, int32_t head, int32_t n_kv_heads, Head& h) {
  const Tensor& q = seen.window_queries;  // [w, H, d]
  const int64_t group = q.dim(1) / n_kv_heads, d = q.dim(2);
  h.queries.resize(q.rows() * group, d);
  for (int64_t row = 0; row < q.rows(); ++row) {
    for (int64_t i = 0; i < group; ++i) {
      h.positions.push_back(seen.window_positions[static_cast<size_t>(row)]);
      for (int64_t c = 0; c < d; ++c) {
        const int64_t at = (head * group + i) * d + c;
        const float x = q.dtype == DType::kBF16 ? to_float(q.row<bf16>(row)[at]) : q.row<float>(row)[at];
        h.queries(row * group + i, c) = x * seen.scale;
      }
    }
  }
}

// [n_queries, n_slots] exp(logit - the row's largest).
MatrixXf weights(const Head& h) {
  MatrixXf w = h.queries * h.k.transpose();
  for (Eigen::Index j = 0; j < w.cols(); ++j) {
    const int32_t at = h.slot_positions[static_cast<size_t>(j)];
    const float bias = h.bias.empty() ? 0.0f : h.bias[static_cast<size_t>(j)];
    for (Eigen::Index i = 0; i < w.rows(); ++i) {
      const int32_t position = h.positions[static_cast<size_t>(i)];
      const bool seen = at <= position && (h.window == 0 || at > position - h.window);
      w(i, j) = seen ? w(i, j) + bias : kUnseen;
    }
  }
  const VectorXf largest = w.rowwise().maxCoeff();
  return (w.colwise() - largest).array().exp();
}

// Rows of weights m [n, t] times u, each row's sum 1.
MatrixXf attention(const MatrixXf& m, const VectorXf& u) {
  const MatrixXf x = m * u.asDiagonal();
  const VectorXf sums = x.rowwise().sum().cwiseMax(kLeastSum);
  return sums.cwiseInverse().asDiagonal() * x;
}

void fit(const Head& h, double ridge, KeepPlan::Head& kept) {
  const MatrixXf all = weights(h);
  const VectorXf sums = all.rowwise().sum();
  const MatrixXf y = sums.cwiseMax(kLeastSum).cwiseInverse().asDiagonal() * (all * h.v);
  const MatrixXf m = all(Eigen::all, kept.keep), old = h.v(kept.keep, Eigen::all);
  // Weights whose sum comes nearest to that of all; the solution without its bound, cut off there; none. What the
  // values make of them decides.
  const VectorXf none = VectorXf::Ones(m.cols());
  VectorXf cut = ridge_least_squares(m, sums, kFirm, none);
  for (Eigen::Index j = 0; j < cut.size(); ++j) {
    cut[j] = m.col(j).maxCoeff() > 0 ? std::max(cut[j], kLeastWeight) : 1.0f;
  }
  float least = std::numeric_limits<float>::infinity();
  for (const VectorXf& u : {bounded_least_squares(m, sums, kLeastWeight), cut, none}) {
    const MatrixXf x = attention(m, u), values = ridge_least_squares(x, y, ridge, old);
    const float error = (x * values - y).squaredNorm();
    if (!(error < least)) continue;
    least = error;
    kept.values.resize(static_cast<size_t>(values.size()));
    Eigen::Map<Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>(kept.values.data(), values.rows(),
                                                                                      values.cols()) = values;
    kept.slot_bias.resize(static_cast<size_t>(u.size()));
    for (size_t j = 0; j < kept.slot_bias.size(); ++j) {
      const float before = h.bias.empty() ? 0.0f : h.bias[static_cast<size_t>(kept.keep[j])];
      kept.slot_bias[j] = before + std::log(u[static_cast<Eigen::Index>(j)]);
    }
  }
}

}  // namespace

void fit_kept_slots(const PartInputs& in, int32_t layer, double ridge, std::span<KeepPlan::Head> kept) {
  const auto n_heads = static_cast<int32_t>(kept.size());
  const auto d = int64_t{in.slots.head_dim(layer)};
  std::vector<Buffer> storage;
  std::vector<Head> heads;
  for (int32_t head = 0; head < n_heads; ++head) {
    const auto n = std::ssize(in.slots.positions(layer, head));
    storage.emplace_back(2 * n * d * dtype_bytes(DType::kF32));
    const Tensor k(storage.back().data(), DType::kF32, {n, d}), v(k.as<float>() + n * d, DType::kF32, {n, d});
    in.slots.read(layer, head, k, v);
    Head& h = heads.emplace_back(Head{.k = Rows(k.as<float>(), n, d), .v = Rows(v.as<float>(), n, d)});
    h.slot_positions = in.slots.positions(layer, head);
    h.bias = in.slots.bias(layer, head);
    h.window = in.slots.window(layer);
    take_queries(in.capture[static_cast<size_t>(layer)], head, n_heads, h);
  }
  parallel_for(n_heads, [&](int64_t head, int) {
    KeepPlan::Head& own = kept[static_cast<size_t>(head)];
    const Head& h = heads[static_cast<size_t>(head)];
    if (!own.keep.empty() && std::ssize(own.keep) < h.k.rows()) fit(h, ridge, own);
  });
}

}  // namespace vlcache
