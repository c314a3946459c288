// Declares the row-wise ops of the CPU backend: one .cc per op, formulas and shapes in ops/backend.h. All of them check
// shapes.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "base/os/threads.h"
#include "base/tensor.h"
#include "ops/backend.h"
#include "ops/cpu/cpu_features.h"

namespace vlcache::cpu {

void rms_norm(Isa isa, const Tensor& x, const Tensor& w, float eps, const Tensor& y);
void layer_norm(Isa isa, const Tensor& x, const Tensor& w, const Tensor& b, float eps, const Tensor& y);
void add(Isa isa, const Tensor& a, const Tensor& b, const Tensor& y);
void scale(Isa isa, const Tensor& x, float factor, const Tensor& y);
void gated_act(Isa isa, const Tensor& gate_up, Activation act, const Tensor& y);
void activate(Isa isa, const Tensor& x, Activation act, const Tensor& y);
void gather_rows(const Tensor& x, std::span<const int32_t> rows, const Tensor& y);
// y[i, k] = x[i, columns[k]]; the same rows, and as many columns.
void gather_columns(const Tensor& x, std::span<const int32_t> columns, const Tensor& y);
void scatter_rows(const Tensor& x, std::span<const int32_t> rows, const Tensor& y);
void route(const Tensor& logits, const Tensor& ids, const Tensor& weights);
void combine_rows(Isa isa, const Tensor& x, const Tensor& rows, const Tensor& at, const Tensor& weights,
                  const Tensor& y);
void convert(Isa isa, const Tensor& x, const Tensor& y);
void patchify(Isa isa, const Tensor& pixels, int64_t patch, const Tensor& y);

// n values at x of dtype `from` (f32, bf16, f16) to y of dtype `to` (f32, bf16), rounded to nearest even. x need not be
// aligned.
struct Conversion {
  DType from, to;
};
void convert_values(Isa isa, Conversion dtypes, const std::byte* x, std::byte* y, int64_t n);

// Same rank and sizes; strides may differ.
bool same_shape(const Tensor& a, const Tensor& b);

// Runs body(begin, end) over all rows, on several threads if the work is large enough. Starting a team costs some
// microseconds, the time in which one core handles about this many elements of a cheap op.
inline constexpr int64_t kElementsPerThread = 16384;

template <typename Body>
void for_row_ranges(int64_t n_rows, int64_t row_size, const Body& body) {
  if (n_rows * row_size < 2 * kElementsPerThread || n_rows == 1) {
    if (n_rows > 0) body(int64_t{0}, n_rows);
    return;
  }
  const auto task = [&](int64_t begin, int64_t end, int) { body(begin, end); };
  parallel_ranges(n_rows, (kElementsPerThread + row_size - 1) / row_size, std::ref(task));
}

}  // namespace vlcache::cpu
