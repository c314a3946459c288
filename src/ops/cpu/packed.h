// Defines the one layout of packed weights, which all kernels read.
//
// W [n_out, n_in] is stored as panels of 64 outputs, each panel a stream along n_in:
//   bf16  [panel][n_in / 2][64][2]   n_in padded to 32
//   f32   [panel][n_in][64]          n_in padded to 16
// n_out is padded to 64; padding is zero. A panel is read front to back once per few rows of x: a plain stream for
// decode, and small enough for L2 (256 KiB at n_in 2048 in bf16) when many rows are multiplied with it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "ops/backend.h"
#include "ops/cpu/cpu_features.h"

namespace vlcache::cpu {

inline constexpr int64_t kPanel = 64;  // outputs per panel
// Of this file and quant_panel.h; its number changes with either.
inline constexpr std::string_view kPackedLayout = "panels of 64, 1";

constexpr int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }
constexpr int64_t padded_inputs(DType dtype, int64_t n_in) { return round_up(n_in, dtype == DType::kF32 ? 16 : 32); }

// A block of a panel as f32 for vector units of 16 registers: strips of 16 outputs, [4][kBlockInputs][kStrip]. A strip
// takes half of L1; with all 64 outputs beside each other, its lines would fall into a quarter of L1's sets.
inline constexpr int64_t kBlockInputs = 256, kStrip = 16, kStripFloats = kBlockInputs * kStrip;

// A matrix of such panels.
struct Panels {
  const std::byte* data;
  DType dtype;
  int64_t n_out, n_in;

  int64_t panel_bytes() const { return padded_inputs(dtype, n_in) * kPanel * dtype_bytes(dtype); }
  const std::byte* panel(int64_t i) const { return data + i * panel_bytes(); }
};
inline Panels panels_of(const Weight& w, const WeightSegment& segment) {
  return {segment.memory.data(), w.dtype, segment.n_out, w.n_in};
}

// Backend::packed_bytes.
int64_t packed_bytes(DType dtype, const std::optional<QuantForm>& form, int64_t n_out, int64_t n_in);

// Backend::pack into `dtype` (bf16 or f32). Sources may lie at any byte offset. Runs on all threads at memory speed.
Weight pack(Isa isa, DType dtype, std::span<const Tensor> parts);

// Backend::embed: rows of a weight of any kind.
void embed(Isa isa, std::span<const int32_t> ids, const Weight& w, const Tensor& y);

// Outputs [begin, end).
struct Columns {
  int64_t begin, end;
};

}  // namespace vlcache::cpu
