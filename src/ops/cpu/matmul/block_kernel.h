// Declares the product of many rows with a panel on vector units of 16 registers (AVX2): weights are widened once for a
// block of rows and wait in L1 while all of its rows pass. Every output is summed over n_in in the order of
// panel_simd_* (panel_kernel.h), so a row's result does not depend on the number of rows.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/tensor.h"
#include "ops/cpu/cpu_features.h"

namespace vlcache::cpu {

// Rows of a group: 6 x 2 vectors of sums, 2 of weights and 1 of x are 15 of AVX2's 16 registers.
inline constexpr int64_t kGroupRows = 6;

// Inputs that are multiplied before the next ones: 16 outputs of as many weights take half of L1.
inline constexpr int64_t kBlockInputs = 256;

// Rows of a block: their inputs (192 KiB), the widened weights (64 KiB) and the sums (48 KiB) stay in an L2 of 512 KiB.
// Measured on one core of a Zen 3, 2048 x 2048, percent of the f32 peak: 96 rows 88, 192 rows 93, 512 rows 76.
inline constexpr int64_t kBlockRows = 192;

// x (bf16 or f32) as groups of kGroupRows rows, each [n_in][rows of the group], in `out` [n_rows * n_in]: the group of
// row r (a multiple of kGroupRows) begins at out + r n_in. Runs on all threads. Broadcasts then read one stream.
void interleave_rows(Isa isa, const Tensor& x, float* out);

// sums[r, c] = sum_k x[r, k] W[c, k] for `columns` outputs of one panel.
struct BlockArgs {
  const float* x;  // interleaved, the first row's group
  int64_t n_rows;  // 1 ... kBlockRows
  int64_t n_in;
  const std::byte* panel;
  int64_t columns;  // 16, 32, 48 or 64
  float* strips;    // [4][kBlockInputs][16]: overwritten
  float* sums;      // [n_rows, 64]
};
void block_simd_bf16(Isa isa, const BlockArgs& args);
void block_simd_f32(Isa isa, const BlockArgs& args);

}  // namespace vlcache::cpu
