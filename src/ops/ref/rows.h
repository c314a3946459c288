// Converts rows of any float dtype to f32 and back, and computes the dot product, for all reference ops.
#pragma once

#include <cstdint>
#include <vector>

#include "base/tensor.h"
#include "ops/backend.h"

namespace vlcache {

// Rows per share of a parallel loop: fewer than this are not worth a thread.
inline constexpr int64_t kRowGrain = 16;

// out[0, n) = elements [at, at + n) of t, counted from t.data in elements of t.dtype (f32, bf16 or f16).
void load_values(const Tensor& t, int64_t at, int64_t n, float* out);
// The reverse, rounded to nearest even. t: f32 or bf16.
void store_values(const float* values, int64_t n, const Tensor& t, int64_t at);

inline void load_row(const Tensor& t, int64_t row, float* out) { load_values(t, row * t.stride, t.row_size(), out); }
inline void store_row(const float* values, const Tensor& t, int64_t row) {
  store_values(values, t.row_size(), t, row * t.stride);
}

// sum_i a[i] b[i] in 16 partial sums: well conditioned, and a loop that compilers vectorise without reordering.
float dot(const float* a, const float* b, int64_t n);
float sum(const float* a, int64_t n);

bool same_shape(const Tensor& a, const Tensor& b);
float apply_activation(Activation act, float x);

}  // namespace vlcache
