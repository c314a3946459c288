// Weights of all slots for every query, then two least squares.
#include "policy/attention_fit.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/buffer.h"
#include "base/threads.h"
#include "policy/least_squares.h"
#include "policy/vectors.h"

namespace vlcache {
namespace {

constexpr double kFirm = 1e-9;  // a ridge that is none
constexpr float kLeastWeight = 1e-12f, kUnseen = -std::numeric_limits<float>::infinity();

// A kv head's slots and the queries it is fitted to.
struct Head {
  Tensor k, v;                              // [n, d] f32
  std::vector<float> queries;               // [n_queries, d], scaled
  std::vector<int32_t> positions;           // [n_queries]
  std::span<const int32_t> slot_positions;  // [n]
  std::span<const float> bias;              // [n] or none
  int32_t window = 0;                       // > 0: a query sees positions > its own - window only
};

void take_queries(const LayerCapture& seen, int32_t head, int32_t n_kv_heads, Head& h) {
  const Tensor& q = seen.window_queries;  // [w, H, d]
  const int64_t group = q.dim(1) / n_kv_heads, d = q.dim(2);
  for (int64_t row = 0; row < q.rows(); ++row) {
    for (int64_t i = head * group; i < (head + 1) * group; ++i) {
      h.positions.push_back(seen.window_positions[static_cast<size_t>(row)]);
      for (int64_t c = 0; c < d; ++c) {
        const float x = q.dtype == DType::kBF16 ? to_float(q.row<bf16>(row)[i * d + c]) : q.row<float>(row)[i * d + c];
        h.queries.push_back(x * seen.scale);
      }
    }
  }
}

// [n, t] of weights [t, n] times u, each row's sum 1.
std::vector<float> attention(std::span<const float> m_t, std::span<const float> u, int64_t n) {
  const auto t = std::ssize(u);
  std::vector<float> x = transposed(m_t, t, n);
  for (int64_t i = 0; i < n; ++i) {
    const std::span<float> row = std::span(x).subspan(static_cast<size_t>(i * t), u.size());
    float sum = 0;
    for (size_t j = 0; j < row.size(); ++j) sum += row[j] *= u[j];
    for (float& value : row) value /= std::max(sum, std::numeric_limits<float>::min());
  }
  return x;
}

double squared_error(std::span<const float> x, std::span<const float> c, std::span<const float> y, int64_t n,
                     int64_t d) {
  const int64_t t = std::ssize(c) / d;
  double error = 0;
  std::vector<float> out(static_cast<size_t>(d));
  for (int64_t i = 0; i < n; ++i) {
    std::copy_n(y.begin() + i * d, d, out.begin());
    for (int64_t j = 0; j < t; ++j) add_scaled(-x[static_cast<size_t>(i * t + j)], c.data() + j * d, out.data(), d);
    for (const float e : out) error += double{e} * e;
  }
  return error;
}

// x [n] = exp(logit - the row's largest) of a query over all slots.
void weigh(const Head& h, int64_t i, std::span<float> x) {
  const auto n = h.k.rows(), d = h.k.dim(1);
  const int32_t position = h.positions[static_cast<size_t>(i)];
  const float* q = h.queries.data() + i * d;
  std::ranges::fill(x, kUnseen);
  float top = kUnseen;
  for (int64_t j = 0; j < n; ++j) {
    const int32_t at = h.slot_positions[static_cast<size_t>(j)];
    if (at > position || (h.window > 0 && at <= position - h.window)) continue;
    const float bias = h.bias.empty() ? 0.0f : h.bias[static_cast<size_t>(j)];
    const float sum = bias + inner_product(q, h.k.row<float>(j), d);
    x[static_cast<size_t>(j)] = sum;
    top = std::max(top, sum);
  }
  for (float& value : x) value = value > kUnseen ? std::exp(value - top) : 0.0f;
}

void fit(const Head& h, double ridge, KeepPlan::Head& kept) {
  const auto t = std::ssize(kept.keep), n = std::ssize(h.positions), d = h.k.dim(1);
  std::vector<float> m_t(static_cast<size_t>(t * n)), all(static_cast<size_t>(n)), y(static_cast<size_t>(n * d));
  const auto n_slots = static_cast<size_t>(h.k.rows());
  std::vector<float> scratch(n_slots * static_cast<size_t>(n_threads()));
  parallel_for(n, [&](int64_t i, int thread) {
    const std::span<float> weights = std::span(scratch).subspan(n_slots * static_cast<size_t>(thread), n_slots);
    weigh(h, i, weights);
    float sum = 0;
    float* output = y.data() + i * d;
    for (size_t j = 0; j < weights.size(); ++j) {
      sum += weights[j];
      const float* value = h.v.row<float>(static_cast<int64_t>(j));
      add_scaled(weights[j], value, output, d);
    }
    for (int64_t c = 0; c < d; ++c) output[c] /= std::max(sum, std::numeric_limits<float>::min());
    all[static_cast<size_t>(i)] = sum;
    for (int64_t j = 0; j < t; ++j) {
      m_t[static_cast<size_t>(j * n + i)] = weights[static_cast<size_t>(kept.keep[static_cast<size_t>(j)])];
    }
  });
  std::vector<float> old;
  for (const int32_t slot : kept.keep) old.insert(old.end(), h.v.row<float>(slot), h.v.row<float>(slot) + d);
  // Weights whose sum comes nearest to that of all; the solution without its bound, cut off there; none. What the
  // values make of them decides.
  std::vector<float> cut(static_cast<size_t>(t)), none(static_cast<size_t>(t), 1.0f);
  ridge_least_squares(transposed(m_t, t, n), all, n, t, 1, kFirm, cut);
  for (int64_t j = 0; j < t; ++j) {
    const std::span<const float> column = std::span(m_t).subspan(static_cast<size_t>(j * n), static_cast<size_t>(n));
    const bool seen = std::ranges::any_of(column, [](float x) { return x > 0; });
    float& u = cut[static_cast<size_t>(j)];
    u = seen ? std::max(u, kLeastWeight) : 1.0f;
  }
  double least = std::numeric_limits<double>::infinity();
  for (const std::vector<float>& u : {bounded_least_squares(m_t, all, kLeastWeight), cut, none}) {
    std::vector<float> values = old;
    const std::vector<float> x = attention(m_t, u, n);
    ridge_least_squares(x, y, n, t, d, ridge, values);
    const double error = squared_error(x, values, y, n, d);
    if (!(error < least)) continue;
    least = error;
    kept.values = std::move(values);
    kept.slot_bias.clear();
    for (size_t j = 0; j < u.size(); ++j) {
      const float before = h.bias.empty() ? 0.0f : h.bias[static_cast<size_t>(kept.keep[j])];
      kept.slot_bias.push_back(before + std::log(u[j]));
    }
  }
}

}  // namespace

void fit_kept_slots(const PartInputs& in, int32_t layer, int32_t head, double ridge, KeepPlan::Head& kept) {
  const auto n = std::ssize(in.slots.positions(layer, head));
  const auto d = int64_t{in.slots.head_dim(layer)}, t = std::ssize(kept.keep);
  if (t == 0 || t == n) return;
  const Buffer storage(2 * n * d * dtype_bytes(DType::kF32));
  Head h;
  h.k = Tensor(storage.data(), DType::kF32, {n, d});
  h.v = Tensor(h.k.as<float>() + n * d, DType::kF32, {n, d});
  in.slots.read(layer, head, h.k, h.v);
  h.slot_positions = in.slots.positions(layer, head);
  h.bias = in.slots.bias(layer, head);
  h.window = in.slots.window(layer);
  take_queries(in.capture[static_cast<size_t>(layer)], head, in.slots.n_kv_heads(layer), h);
  fit(h, ridge, kept);
}

}  // namespace vlcache
