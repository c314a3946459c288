// Declares the product of many rows with a block of weights, some inputs of a panel, on vector units of 16 registers
// (AVX2): weights are widened once for all rows of a tile, and a strip of 16 outputs stays in L1 while the rows pass.
// Every output is summed over n_in in the order of panel_simd_* (panel_kernel.h), so a row's result does not depend on
// the number of rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/tensor.h"
#include "ops/cpu/cpu_features.h"
#include "ops/cpu/packed.h"

namespace vlcache::cpu {

// Rows of a group: 6 x 2 vectors of sums, 2 of weights and 1 of x are 15 of AVX2's 16 registers.
inline constexpr int64_t kGroupRows = 6;

// x (bf16 or f32) as blocks of inputs, these as groups of kGroupRows rows, each [inputs][rows of the group], in `out`
// [n_rows * n_in]: the kernel then reads one stream. Runs on all threads.
void interleave_rows(Isa isa, const Tensor& x, float* out);
// Where the group of row `row` (a multiple of kGroupRows) begins, in the block from input `first` on.
constexpr int64_t interleaved_at(int64_t n_rows, int64_t n_in, int64_t row, int64_t first) {
  return first * n_rows + row * (n_in - first < kBlockInputs ? n_in - first : kBlockInputs);
}

// `n` inputs of 64 outputs in packed.h's layout as f32, strip after strip (packed.h).
void widen_to_strips(Isa isa, DType dtype, const std::byte* inputs, int64_t n, float* strips);

// sums[r, c] += sum_k x[r, k] W[c, k] for `columns` outputs of a block.
struct BlockArgs {
  const float* x;  // interleaved, the first row's group
  int64_t n_rows, n_inputs;
  const float* strips;
  int64_t columns;                       // 16, 32, 48 or 64
  bool begin;                            // the sums begin here
  float* sums;                           // [n_rows, 64]
  std::span<const std::byte> next = {};  // read next: fetched beside the products
};
void multiply_block(Isa isa, const BlockArgs& args);

}  // namespace vlcache::cpu
