// Declares inner product kernels: a few rows of x with one panel of packed weights. Sums run over n_in in one fixed
// order per output, whatever the number of rows, so a row's result does not depend on its batch (but AMX's order is
// another).
#pragma once

#include <cstdint>

#include "ops/cpu/cpu_features.h"

namespace vlcache::cpu {

// acc[r, c] = sum_k x[r, k] W[c, k] for `columns` outputs of one panel.
struct PanelArgs {
  const std::byte* x;  // rows of bf16 (panel_bf16dot) or f32 (panel_simd)
  int64_t x_stride;    // elements between rows
  int64_t n_rows;      // 1 ... kPanelRows, with AMX kAmxRows
  int64_t n_in;
  const std::byte* panel;  // first column's first element
  int64_t columns;         // 16, 32, 48 or 64
  float* acc;              // [n_rows, 64]
};

inline constexpr int64_t kPanelRows = 6;  // 6 x 4 vectors of 16 sums fill the 32 registers of AVX-512
inline constexpr int64_t kAmxRows = 16;   // of a tile

// bf16 weights and x. Requires Isa::kAvx512Bf16.
void panel_bf16dot(const PanelArgs& args);
// The same on tiles, reading the weights from memory. Requires Isa::kAmxBf16.
void panel_amx(const PanelArgs& args);

inline constexpr int64_t kAmxGroup = 32;  // rows: 2 x 2 tiles of 16 x 16 sums, half of AMX's registers
inline constexpr int64_t kAmxStep = 32;   // inputs of a tile

// Adds the products of some steps to the sums of a group of rows with a panel, or begins the sums. Requires
// Isa::kAmxBf16.
struct AmxGroupArgs {
  const std::byte* x;  // [n_steps][2][16 rows][32 inputs] of bf16
  const std::byte* panel;
  int64_t n_steps;
  int64_t n_rows;   // 1 ... 32; the sums of 16 or 32 are written
  int64_t columns;  // 1 ... 64; the sums of 32 or 64 are written
  bool begin;
  float* sums;  // [32, 64]
};
void panel_amx_group(const AmxGroupArgs& args);
// bf16 or f32 weights widened in registers, f32 x.
void panel_simd_bf16(Isa isa, const PanelArgs& args);
void panel_simd_f32(Isa isa, const PanelArgs& args);

}  // namespace vlcache::cpu
