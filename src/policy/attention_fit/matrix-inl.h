// Matrices in rows of whole vectors, products of them and exponentials, for files that are compiled for an instruction
// set of their own: all code here is inline, and local to the file.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "policy/attention_fit/fit_head.h"

namespace vlcache {
namespace {

#if defined(__AVX512F__)
constexpr int64_t kVectorBytes = 64, kTileRows = 8;  // tiles of 8 x 2 vectors of sums, of 32 registers
#elif defined(__AVX2__)
constexpr int64_t kVectorBytes = 32, kTileRows = 6;
#else
constexpr int64_t kVectorBytes = 16, kTileRows = 6;
#endif

template <typename T>
struct VectorOf;
template <>
struct VectorOf<float> {
  typedef float type __attribute__((vector_size(kVectorBytes)));
};
template <>
struct VectorOf<double> {
  typedef double type __attribute__((vector_size(kVectorBytes)));
};
template <typename T>
using Vector = typename VectorOf<T>::type;
typedef int32_t IntVector __attribute__((vector_size(kVectorBytes)));
template <typename T>
constexpr int64_t kLanes = kVectorBytes / static_cast<int64_t>(sizeof(T));

template <typename T>
inline Vector<T> load(const T* p) {
  Vector<T> v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}
template <typename T>
inline void store(const Vector<T>& v, T* p) {
  std::memcpy(p, &v, sizeof(v));
}

constexpr int64_t kPadding = 16;  // columns: whole vectors of either type
inline int64_t padded(int64_t n) { return (n + kPadding - 1) / kPadding * kPadding; }

// [rows, cols], zero at first. Rows are padded with columns that stay zero unless a function says otherwise.
template <typename T>
class Matrix {
 public:
  Matrix(int64_t rows, int64_t cols) : rows(rows), cols(cols), stride(padded(cols)) {
    const size_t bytes = static_cast<size_t>(rows * stride) * sizeof(T);
    memory_ = static_cast<T*>(fit_memory(bytes));
    std::memset(memory_, 0, bytes);
  }
  ~Matrix() { std::free(memory_); }
  Matrix(const Matrix&) = delete;
  Matrix& operator=(const Matrix&) = delete;

  T* row(int64_t i) { return memory_ + i * stride; }
  const T* row(int64_t i) const { return memory_ + i * stride; }

  const int64_t rows, cols, stride;

 private:
  T* memory_ = nullptr;
};

// Elements (i, k) of a factor, of a matrix or of its transpose.
template <typename T>
struct Elements {
  const T* data;
  int64_t row, col;  // strides
};
template <typename T>
inline Elements<T> elements(const Matrix<T>& m) {
  return {m.row(0), m.stride, 1};
}
template <typename T>
inline Elements<T> transposed(const Matrix<T>& m) {
  return {m.row(0), 1, m.stride};
}

// Rows of a factor or a sum, in whole vectors.
template <typename T>
struct RowsOf {
  T* data;
  int64_t stride;
};

// kRows rows and kVectors vectors of C += sign A B.
template <int kSign, int kRows, int kVectors, typename T>
inline void multiply_tile(Elements<T> a, RowsOf<const T> b, int64_t depth, T* c, int64_t stride) {
  Vector<T> sums[kRows][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) sums[r][v] = load(c + r * stride + v * kLanes<T>);
  }
  for (int64_t k = 0; k < depth; ++k) {
    Vector<T> w[kVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) w[v] = load(b.data + k * b.stride + v * kLanes<T>);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const T x = a.data[r * a.row + k * a.col];
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) {
        if constexpr (kSign > 0) {
          sums[r][v] += x * w[v];
        } else {
          sums[r][v] -= x * w[v];
        }
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) store<T>(sums[r][v], c + r * stride + v * kLanes<T>);
  }
}

// The rest of rows, fewer than kTileRows.
template <int kSign, int kRows, int kVectors, typename T>
inline void multiply_rest(int64_t rows, Elements<T> a, RowsOf<const T> b, int64_t depth, T* c, int64_t stride) {
  if constexpr (kRows > 0) {
    if (rows == kRows) return multiply_tile<kSign, kRows, kVectors>(a, b, depth, c, stride);
    multiply_rest<kSign, kRows - 1, kVectors>(rows, a, b, depth, c, stride);
  }
}

template <int kSign, int kVectors, typename T>
inline void multiply_columns(int64_t rows, Elements<T> a, RowsOf<const T> b, int64_t depth, RowsOf<T> c) {
  int64_t i = 0;
  for (; i + kTileRows <= rows; i += kTileRows, a.data += kTileRows * a.row)
    multiply_tile<kSign, kTileRows, kVectors>(a, b, depth, c.data + i * c.stride, c.stride);
  multiply_rest<kSign, kTileRows - 1, kVectors>(rows - i, a, b, depth, c.data + i * c.stride, c.stride);
}

struct ProductShape {
  int64_t rows, depth, cols;  // of C and A, of A and B, of B and C; whole vectors are written
  // Rows i <= upper + j suffice of each column j.
  int64_t upper = std::numeric_limits<int32_t>::max();
};

// C += kSign A B, a column of tiles after the other, so that B's part stays in L1.
template <int kSign, typename T>
inline void multiply(const ProductShape& shape, Elements<T> a, RowsOf<const T> b, RowsOf<T> c) {
  constexpr int64_t kWide = 2 * kLanes<T>;
  for (int64_t j = 0; j < shape.cols; j += kWide) {
    const bool wide = j + kLanes<T> < shape.cols;
    const int64_t rows = std::min(shape.rows, shape.upper + j + kWide);
    const RowsOf<const T> of_b{b.data + j, b.stride};
    const RowsOf<T> of_c{c.data + j, c.stride};
    wide ? multiply_columns<kSign, 2>(rows, a, of_b, shape.depth, of_c)
         : multiply_columns<kSign, 1>(rows, a, of_b, shape.depth, of_c);
  }
}

template <typename T>
inline RowsOf<const T> rows_of(const Matrix<T>& m, int64_t first = 0) {
  return {m.row(first), m.stride};
}
template <typename T>
inline RowsOf<T> rows_of(Matrix<T>& m, int64_t first = 0) {
  return {m.row(first), m.stride};
}

// The sum of a vector's lanes.
template <typename T>
inline T sum_of(const Vector<T>& v) {
  T sum = 0;
  for (int64_t i = 0; i < kLanes<T>; ++i) sum += v[i];
  return sum;
}

// Sums over n elements, whole vectors, in four chains.
template <typename T>
inline T dot(const T* a, const T* b, int64_t n) {
  Vector<T> sums[4] = {};
  int64_t i = 0;
  for (; i + 4 * kLanes<T> <= n; i += 4 * kLanes<T>) {
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) sums[v] += load(a + i + v * kLanes<T>) * load(b + i + v * kLanes<T>);
  }
  for (; i < n; i += kLanes<T>) sums[0] += load(a + i) * load(b + i);
  return sum_of<T>((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

// y += factor x, of n elements, whole vectors.
template <typename T>
inline void add_scaled(T factor, const T* x, int64_t n, T* y) {
  for (int64_t i = 0; i < n; i += kLanes<T>) store<T>(load(y + i) + factor * load(x + i), y + i);
}

inline Vector<float> largest_of(const Vector<float>& a, const Vector<float>& b) { return a > b ? a : b; }

// exp(x) of x <= 0 to 2 units in the last place; 0 where it is below the normal numbers. By 2^n e^r, |r| <= ln(2) / 2,
// and r's Taylor polynomial.
inline Vector<float> exp_of(const Vector<float>& x) {
  constexpr float kLog2E = 1.44269504f, kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;
  constexpr float kLeast = -87.0f, kRound = 12582912.0f;  // 1.5 * 2^23: the sum has whole numbers in its last bits
  const Vector<float> zero = {}, v = largest_of(x, zero + kLeast);
  const Vector<float> n = (v * kLog2E + kRound) - kRound;
  const Vector<float> r = (v - n * kLn2High) - n * kLn2Low;
  Vector<float> p = zero + 1.0f / 5040;
  for (const float c : {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f}) p = p * r + c;
  const IntVector power = (__builtin_convertvector(n, IntVector) + 127) << 23;
  Vector<float> scale;
  std::memcpy(&scale, &power, sizeof(scale));
  return x < zero + kLeast ? zero : p * scale;
}

}  // namespace
}  // namespace vlcache
