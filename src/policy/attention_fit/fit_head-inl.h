// fit_head: weights of all slots for every query, then two least-squares problems. VLCACHE_FIT_HEAD is the function to
// define. Weights are stored with a row for each slot and a column for each query.
#pragma once

#include <limits>

#include "policy/attention_fit/fit_head.h"
#include "policy/attention_fit/least_squares-inl.h"

namespace vlcache {
namespace {

constexpr int kSweeps = 30;           // more sweeps did not improve the fit
constexpr double kFirm = 1e-4;        // a ridge that keeps weights near 1 unless a query depends on them
constexpr double kFloatRidge = 1e-4;  // from this ridge on values stay near, and single precision suffices
constexpr float kLeastWeight = 1e-12f, kLeastSum = std::numeric_limits<float>::min(),
                kUnseen = -std::numeric_limits<float>::infinity();

constexpr int64_t kBlock = 256;  // slots whose weights for all queries stay in the second-level cache
// Smaller than any logit, and finite: what a query does not see weighs 0.
constexpr float kLowest = std::numeric_limits<float>::lowest();

// A squared error is smaller than another if it is by more than roundings make it, relative to the other and to the
// output: one kept slot gives the same output whatever its weight, and kernels and blocks of slots that round
// differently must choose the same solution.
constexpr float kClearly = 1e-4f, kRounding = 1e-12f;

// Adds a slot's bias to its logits [n_queries], and hides them from queries that do not see it.
inline void restrict_logits(const FitHead& h, int64_t slot, int32_t first_query, float* logits) {
  const int32_t at = h.slot_places[static_cast<size_t>(slot)];
  if (!h.bias.empty()) {
    const float bias = h.bias[static_cast<size_t>(slot)];
    for (int64_t i = 0; i < h.n_queries; ++i) logits[i] += bias;
  }
  if (at <= first_query && h.window == 0) return;
  for (int64_t i = 0; i < h.n_queries; ++i) {
    const int32_t position = h.query_places[static_cast<size_t>(i)];
    if (at > position || (h.window > 0 && at <= position - h.window)) logits[i] = kUnseen;
  }
}

// The queries as columns.
inline void transpose_queries(const FitHead& h, Matrix<float>& to) {
  for (int64_t i = 0; i < h.n_queries; ++i) {
    for (int64_t c = 0; c < h.head_dim; ++c) to.row(c)[i] = h.queries[i * h.head_dim + c];
  }
}

// What the queries get from all slots.
struct Whole {
  explicit Whole(const FitHead& h)
      : queries(h.head_dim, h.n_queries),
        largest(1, h.n_queries),
        sums(1, h.n_queries),
        sinks(1, h.n_queries),
        output(h.n_queries, h.head_dim) {}
  int32_t first_query = 0;
  Matrix<float> queries;  // [head_dim, n_queries]
  Matrix<float> largest;  // [1, n_queries] logit, the sink's included
  Matrix<float> sums;     // [1, n_queries] of exp(logit - largest), without the sink's
  Matrix<float> sinks;    // [1, n_queries] exp(sink - largest), 0 without a sink
  Matrix<float> output;   // [n_queries, head_dim]
  float squares = 0;      // of output
};

// Makes weights exp(logit - largest) of logits [rows of w, n_queries].
inline void exponentials(const Whole& all, int64_t rows, Matrix<float>& w) {
  for (int64_t j = 0; j < rows; ++j) {
    for (int64_t i = 0; i < w.stride; i += kLanes<float>) {
      float* at = w.row(j) + i;
      store<float>(exp_of(load(at) - load(all.largest.row(0) + i)), at);
    }
  }
}

// Raises `largest` to the logits of a block, and scales what was summed up to it.
inline void raise_largest(int64_t rows, const Matrix<float>& logits, Whole& all) {
  for (int64_t i = 0; i < logits.stride; i += kLanes<float>) {
    const Vector<float> before = load(all.largest.row(0) + i);
    Vector<float> largest = before;
    for (int64_t j = 0; j < rows; ++j) largest = largest_of(largest, load(logits.row(j) + i));
    const Vector<float> scale = exp_of(before - largest);
    store<float>(largest, all.largest.row(0) + i);
    store<float>(load(all.sums.row(0) + i) * scale, all.sums.row(0) + i);
    for (int64_t l = 0; l < kLanes<float> && i + l < all.output.rows; ++l) {
      float* output = all.output.row(i + l);
      for (int64_t c = 0; c < all.output.stride; ++c) output[c] *= scale[l];
    }
  }
}

// Block by block: the weights of all slots together are larger than the caches.
inline void attend_to_all(const FitHead& h, Whole& all) {
  transpose_queries(h, all.queries);
  all.first_query = h.query_places[0];
  for (const int32_t place : h.query_places) all.first_query = std::min(all.first_query, place);
  std::fill_n(all.largest.row(0), all.largest.stride, kLowest);
  for (size_t i = 0; i < h.sinks.size(); ++i) all.largest.row(0)[i] = std::max(kLowest, h.sinks[i]);
  Matrix<float> w(kBlock, h.n_queries), values(kBlock, h.head_dim);
  for (int64_t begin = 0; begin < h.n_slots; begin += kBlock) {
    const int64_t n = std::min(kBlock, h.n_slots - begin);
    std::memset(w.row(0), 0, static_cast<size_t>(n * w.stride) * sizeof(float));
    multiply<1, float>({.rows = n, .depth = h.head_dim, .cols = h.n_queries}, {h.k + begin * h.head_dim, h.head_dim, 1},
                       rows_of(std::as_const(all.queries)), rows_of(w));
    for (int64_t j = 0; j < n; ++j) restrict_logits(h, begin + j, all.first_query, w.row(j));
    raise_largest(n, w, all);
    exponentials(all, n, w);
    for (int64_t j = 0; j < n; ++j) {
      add_scaled(1.0f, w.row(j), w.stride, all.sums.row(0));
      std::copy_n(h.v + (begin + j) * h.head_dim, h.head_dim, values.row(j));
    }
    multiply<1, float>({.rows = h.n_queries, .depth = n, .cols = h.head_dim}, transposed(w),
                       rows_of(std::as_const(values)), rows_of(all.output));
  }
  for (size_t i = 0; i < h.sinks.size(); ++i) all.sinks.row(0)[i] = std::exp(h.sinks[i] - all.largest.row(0)[i]);
  for (int64_t i = 0; i < h.n_queries; ++i) {
    const float factor = 1.0f / std::max(all.sums.row(0)[i] + all.sinks.row(0)[i], kLeastSum);
    for (int64_t c = 0; c < h.head_dim; ++c) all.output.row(i)[c] *= factor;
    all.squares += dot(all.output.row(i), all.output.row(i), all.output.stride);
  }
}

// m [keep.size(), n_queries]: exp(logit - the query's largest of all slots).
inline void kept_weights(const FitHead& h, const Whole& all, std::span<const int32_t> keep, Matrix<float>& m) {
  Matrix<float> k(m.rows, h.head_dim);
  for (int64_t j = 0; j < m.rows; ++j)
    std::copy_n(h.k + keep[static_cast<size_t>(j)] * h.head_dim, h.head_dim, k.row(j));
  multiply<1, float>({.rows = m.rows, .depth = h.head_dim, .cols = h.n_queries}, elements(k),
                     rows_of(std::as_const(all.queries)), rows_of(m));
  for (int64_t j = 0; j < m.rows; ++j) restrict_logits(h, keep[static_cast<size_t>(j)], all.first_query, m.row(j));
  exponentials(all, m.rows, m);
  for (int64_t j = 0; j < m.rows; ++j) std::fill_n(m.row(j) + m.cols, m.stride - m.cols, 0.0f);
}

// x: rows of weights m [t, n_queries] times u [1, t], each query's normalised to a sum of 1 with its sink's.
inline void attention(const Whole& all, const Matrix<float>& m, const Matrix<float>& u, Matrix<float>& x) {
  Matrix<float> sums(1, m.cols);
  std::copy_n(all.sinks.row(0), all.sinks.cols, sums.row(0));
  for (int64_t j = 0; j < m.rows; ++j) add_scaled(u.row(0)[j], m.row(j), m.stride, sums.row(0));
  for (int64_t i = 0; i < m.stride; ++i) sums.row(0)[i] = 1.0f / std::max(sums.row(0)[i], kLeastSum);
  for (int64_t j = 0; j < m.rows; ++j) {
    const float own = u.row(0)[j];
    for (int64_t i = 0; i < m.stride; ++i) x.row(j)[i] = m.row(j)[i] * own * sums.row(0)[i];
  }
}

// The squared error of values [t, head_dim] under attention x [t, n_queries]; rest [n_queries, head_dim] = output of
// all slots - x values.
inline float error_of(const Whole& all, const Matrix<float>& x, const Matrix<float>& values, Matrix<float>& rest) {
  for (int64_t i = 0; i < rest.rows; ++i) std::copy_n(all.output.row(i), rest.cols, rest.row(i));
  multiply<-1, float>({.rows = rest.rows, .depth = x.rows, .cols = rest.cols}, transposed(x), rows_of(values),
                      rows_of(rest));
  float error = 0;
  for (int64_t i = 0; i < rest.rows; ++i) error += dot(rest.row(i), rest.row(i), rest.stride);
  return error;
}

inline bool clearly_less(const Whole& all, float error, float than) {
  return error < (1 - kClearly) * than - kRounding * all.squares;
}

// The weights u [1, t] of kept slots whose sum comes nearest to that of all slots, without a bound, then clipped to it.
inline void clipped_weights(const Matrix<float>& m, const Matrix<float>& sums, Matrix<float>& u) {
  Matrix<float> column(m.rows, 1), rest(m.cols, 1);
  for (int64_t j = 0; j < m.rows; ++j) column.row(j)[0] = 1;
  for (int64_t i = 0; i < m.cols; ++i) rest.row(i)[0] = sums.row(0)[i];
  for (int64_t j = 0; j < m.rows; ++j) {
    for (int64_t i = 0; i < m.cols; ++i) rest.row(i)[0] -= m.row(j)[i];
  }
  ridge_least_squares<float>(m, rest, kFirm, column);
  for (int64_t j = 0; j < m.rows; ++j) {
    const float largest = *std::max_element(m.row(j), m.row(j) + m.cols);
    u.row(0)[j] = largest > 0 ? std::max(column.row(j)[0], kLeastWeight) : 1.0f;
  }
}

// What is fitted: weights u [1, t] and values [t, head_dim], at first ones and the old values.
struct Fitted {
  Fitted(int64_t t, int64_t head_dim) : u(1, t), values(t, head_dim) { std::fill_n(u.row(0), t, 1.0f); }
  void take(const Fitted& other) {
    std::copy_n(other.u.row(0), u.cols, u.row(0));
    for (int64_t j = 0; j < values.rows; ++j) std::copy_n(other.values.row(j), values.cols, values.row(j));
  }
  Matrix<float> u, values;
};

// Values are drawn to the old ones. Of two candidates for the weights, those whose sum comes nearest to that of all
// slots and all ones, the one with the least error of the old values' output is fitted. Fitting all three of
// fit_freely() took four solutions instead of one and left 6 to 8 % less error (squared, all heads together; pages of
// tinydoc and wordpage, 5 and 10 %).
inline void fit_near(const Matrix<float>& m, const Whole& all, double ridge, Fitted& best) {
  const int64_t t = m.rows, d = best.values.cols;
  Matrix<float> bounded(1, t), x(t, m.cols), rest(m.cols, d), x_of_ones(t, m.cols), rest_of_ones(m.cols, d);
  bounded_least_squares(m, all.sums, kLeastWeight, kSweeps, bounded);
  attention(all, m, bounded, x), attention(all, m, best.u, x_of_ones);
  const float error = error_of(all, x, best.values, rest);
  if (!clearly_less(all, error, error_of(all, x_of_ones, best.values, rest_of_ones)))
    return ridge_least_squares<float>(x_of_ones, rest_of_ones, ridge, best.values);
  std::copy_n(bounded.row(0), t, best.u.row(0));
  ridge_least_squares<float>(x, rest, ridge, best.values);
}

// Values are free, so the old ones say little about a candidate: each is fitted, and the one with the least error used.
inline void fit_freely(const Matrix<float>& m, const Whole& all, double ridge, Fitted& best) {
  const int64_t t = m.rows, d = best.values.cols;
  Matrix<float> x(t, m.cols), rest(m.cols, d);
  Fitted old(t, d), next(t, d);
  old.take(best);
  float least = std::numeric_limits<float>::infinity();
  for (int candidate = 0; candidate < 3; ++candidate) {
    next.take(old);
    if (candidate == 0) bounded_least_squares(m, all.sums, kLeastWeight, kSweeps, next.u);
    if (candidate == 1) clipped_weights(m, all.sums, next.u);
    attention(all, m, next.u, x);
    error_of(all, x, next.values, rest);
    ridge_least_squares<double>(x, rest, ridge, next.values);
    const float error = error_of(all, x, next.values, rest);
    if (candidate > 0 && !clearly_less(all, error, least)) continue;
    least = error;
    best.take(next);
  }
}

}  // namespace

void VLCACHE_FIT_HEAD(const FitHead& h, double ridge, std::span<const int32_t> keep, std::span<float> values,
                      std::span<float> bias) {
  const auto t = static_cast<int64_t>(keep.size());
  Whole all(h);
  attend_to_all(h, all);
  Matrix<float> m(t, h.n_queries);
  kept_weights(h, all, keep, m);
  Fitted fitted(t, h.head_dim);
  for (int64_t j = 0; j < t; ++j)
    std::copy_n(h.v + keep[static_cast<size_t>(j)] * h.head_dim, h.head_dim, fitted.values.row(j));
  ridge < kFloatRidge ? fit_freely(m, all, ridge, fitted) : fit_near(m, all, ridge, fitted);
  for (int64_t j = 0; j < t; ++j) {
    const auto i = static_cast<size_t>(j);
    std::copy_n(fitted.values.row(j), h.head_dim, values.data() + j * h.head_dim);
    bias[i] = (h.bias.empty() ? 0.0f : h.bias[static_cast<size_t>(keep[i])]) + std::log(fitted.u.row(0)[j]);
  }
}

}  // namespace vlcache
