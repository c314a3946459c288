// Small least-squares problems, for files that are compiled for an instruction set of their own: all code here is
// inline. Matrices of weights are stored transposed: a row for each column of the problem's.
#pragma once

#include <algorithm>
#include <cmath>
#include <utility>

#include "policy/attention_fit/matrix-inl.h"

namespace vlcache {
namespace {

constexpr float kLittle = 1e-6f;  // relative to u's largest, in a sweep

// u [1, t] >= least that minimises |M u - s|: mt [t, n] is M transposed, s [1, n]. By cyclic coordinate descent from
// u = 1, until a sweep changes little, at most this many sweeps.
inline void bounded_least_squares(const Matrix<float>& mt, const Matrix<float>& s, float least, int most_sweeps,
                                  Matrix<float>& u) {
  const int64_t t = mt.rows, n = mt.stride;
  Matrix<float> rest(1, mt.cols), norms(1, t);
  std::copy_n(s.row(0), mt.cols, rest.row(0));
  for (int64_t j = 0; j < t; ++j) {
    u.row(0)[j] = 1;
    add_scaled(-1.0f, mt.row(j), n, rest.row(0));
    norms.row(0)[j] = dot(mt.row(j), mt.row(j), n);
  }
  for (int sweep = 0; sweep < most_sweeps; ++sweep) {
    float largest = 0, change = 0;
    for (int64_t j = 0; j < t; ++j) {
      float& own = u.row(0)[j];
      const float norm = norms.row(0)[j];
      if (norm <= 0) continue;
      const float next = std::max(least, own + dot(mt.row(j), rest.row(0), n) / norm), step = next - own;
      if (step != 0) add_scaled(-step, mt.row(j), n, rest.row(0));
      own = next;
      largest = std::max(largest, next);
      change = std::max(change, std::abs(step));
    }
    if (change <= kLittle * largest) break;
  }
}

constexpr int64_t kFactorRows = 32;  // rows that are factored one by one before all later ones see them

// A = U^T U of a symmetric matrix whose upper half holds A, and then U, with the inverse of its diagonal in `inverse`.
// A pivot that rounding made zero or less leaves its direction out: its inverse is 0.
template <typename T>
inline void cholesky(Matrix<T>& a, Matrix<T>& inverse) {
  const int64_t n = a.rows;
  for (int64_t begin = 0; begin < n; begin += kFactorRows) {
    const int64_t end = std::min(n, begin + kFactorRows);
    for (int64_t k = begin; k < end; ++k) {
      const int64_t from = k / kLanes<T> * kLanes<T>;  // whole vectors: what stands left of the diagonal is not read
      for (int64_t i = begin; i < k; ++i) add_scaled(-a.row(i)[k], a.row(i) + from, a.stride - from, a.row(k) + from);
      const T pivot = a.row(k)[k], own = pivot > 0 ? 1 / std::sqrt(pivot) : T{0};
      inverse.row(0)[k] = own;
      for (int64_t j = k; j < n; ++j) a.row(k)[j] *= own;
    }
    if (end == n) return;
    const int64_t from = end / kPadding * kPadding;
    multiply<-1, T>({.rows = n - end, .depth = end - begin, .cols = n - from, .upper = from - end},
                    {a.row(begin) + end, 1, a.stride}, {a.row(begin) + from, a.stride}, {a.row(end) + from, a.stride});
  }
}

// b [n, d] = (U^T U)^-1 b, some rows at a time.
template <typename T>
inline void solve(const Matrix<T>& u, const Matrix<T>& inverse, Matrix<T>& b) {
  const int64_t n = u.rows, d = b.stride;
  for (int64_t begin = 0; begin < n; begin += kTileRows) {
    const int64_t end = std::min(n, begin + kTileRows);
    multiply<-1, T>({.rows = end - begin, .depth = begin, .cols = d}, {u.row(0) + begin, 1, u.stride},
                    rows_of(std::as_const(b)), rows_of(b, begin));
    for (int64_t k = begin; k < end; ++k) {
      for (int64_t i = begin; i < k; ++i) add_scaled(-u.row(i)[k], b.row(i), d, b.row(k));
      for (int64_t c = 0; c < d; ++c) b.row(k)[c] *= inverse.row(0)[k];
    }
  }
  for (int64_t end = n; end > 0; end = (end - 1) / kTileRows * kTileRows) {
    const int64_t begin = (end - 1) / kTileRows * kTileRows;
    multiply<-1, T>({.rows = end - begin, .depth = n - end, .cols = d}, {u.row(begin) + end, u.stride, 1},
                    rows_of(std::as_const(b), end), rows_of(b, begin));
    for (int64_t k = end; k-- > begin;) {
      for (int64_t i = k + 1; i < end; ++i) add_scaled(-u.row(k)[i], b.row(i), d, b.row(k));
      for (int64_t c = 0; c < d; ++c) b.row(k)[c] *= inverse.row(0)[k];
    }
  }
}

template <typename T>
inline void copy_to(const Matrix<float>& from, Matrix<T>& to) {
  for (int64_t i = 0; i < from.rows; ++i) std::copy_n(from.row(i), from.cols, to.row(i));
}

template <typename T>
inline void transpose_to(const Matrix<T>& from, Matrix<T>& to) {
  constexpr int64_t kTogether = 16;  // rows: a line of the cache
  for (int64_t first = 0; first < from.rows; first += kTogether) {
    const int64_t end = std::min(from.rows, first + kTogether);
    for (int64_t c = 0; c < from.cols; ++c) {
      for (int64_t r = first; r < end; ++r) to.row(c)[r] = from.row(r)[c];
    }
  }
}

// Adds to C [t, d] the change D that minimises |X D - R|^2 + ridge |X|_F^2 / min(n, t) |D|^2: xt [t, n] is X
// transposed, rest [n, d] is R = Y - X C. With fewer rows than columns, directions that the rows do not determine do
// not change. By Cholesky of the smaller of X X^T and X^T X, in T: double for a small ridge.
template <typename T>
inline void ridge_least_squares(const Matrix<float>& of_xt, const Matrix<float>& of_rest, double ridge,
                                Matrix<float>& c) {
  const int64_t t = of_xt.rows, n = of_xt.cols, d = of_rest.cols, size = std::min(n, t);
  Matrix<T> xt(t, n), rest(n, d), gram(size, size), inverse(1, size), change(t, d);
  copy_to(of_xt, xt), copy_to(of_rest, rest);
  if (n <= t) {
    multiply<1, T>({.rows = n, .depth = t, .cols = n, .upper = 0}, transposed(xt), rows_of(std::as_const(xt)),
                   rows_of(gram));
  } else {
    Matrix<T> x(n, t);
    transpose_to(xt, x);
    multiply<1, T>({.rows = t, .depth = n, .cols = t, .upper = 0}, elements(xt), rows_of(std::as_const(x)),
                   rows_of(gram));
    multiply<1, T>({.rows = t, .depth = n, .cols = d}, elements(xt), rows_of(std::as_const(rest)), rows_of(change));
  }
  double trace = 0;
  for (int64_t i = 0; i < size; ++i) trace += static_cast<double>(gram.row(i)[i]);
  for (int64_t i = 0; i < size; ++i)
    gram.row(i)[i] += static_cast<T>(ridge * trace / static_cast<double>(size) + 1e-30);
  cholesky(gram, inverse);
  if (n <= t) {
    solve(gram, inverse, rest);
    multiply<1, T>({.rows = t, .depth = n, .cols = d}, elements(xt), rows_of(std::as_const(rest)), rows_of(change));
  } else {
    solve(gram, inverse, change);
  }
  for (int64_t i = 0; i < t; ++i) {
    for (int64_t j = 0; j < d; ++j) c.row(i)[j] += static_cast<float>(change.row(i)[j]);
  }
}

}  // namespace
}  // namespace vlcache
