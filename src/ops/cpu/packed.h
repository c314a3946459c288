// Defines the one layout of packed weights, read by oneDNN and by our own kernels alike.
//
// W [n_out, n_in] is stored as panels of 64 outputs, each panel a stream along n_in:
//   bf16  [panel][n_in / 2][64][2]   oneDNN's BA16a64b2a; n_in padded to 32
//   f32   [panel][n_in][64]          oneDNN's BA16a64b;   n_in padded to 16
// n_out is padded to 64; padding is zero. A panel is read front to back once per few rows of x: a plain stream for
// decode, and small enough for L2 (256 KiB at n_in 2048 in bf16) when many rows are multiplied with it.
#pragma once

#include <cstdint>
#include <span>

#include "ops/backend.h"
#include "ops/cpu/cpu_features.h"

namespace vlcache::cpu {

inline constexpr int64_t kPanel = 64;  // outputs per panel

constexpr int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }
constexpr int64_t padded_inputs(DType dtype, int64_t n_in) { return round_up(n_in, dtype == DType::kF32 ? 16 : 32); }
inline int64_t panel_bytes(const Weight& w) { return padded_inputs(w.dtype, w.n_in) * kPanel * dtype_bytes(w.dtype); }

// Backend::pack into `dtype` (bf16 or f32). Sources may lie at any byte offset. Runs on all threads at memory speed.
Weight pack(Isa isa, DType dtype, std::span<const Tensor> parts);

// Backend::embed: rows of a packed or plain weight.
void embed(Isa isa, std::span<const int32_t> ids, const Weight& w, const Tensor& y);

// Columns [begin, end) of W^T as plain f32 [n_in, end - begin] at `out`, rows `ld` elements apart; begin is a multiple
// of 64.
struct Columns {
  int64_t begin, end;
};
void unpack_columns(const Weight& w, const Columns& columns, float* out, int64_t ld);

}  // namespace vlcache::cpu
