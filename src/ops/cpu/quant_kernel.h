// Declares the kernels that read quantised panels: a few rows of x with the codes as they are, and a panel as values.
#pragma once

#include <cstdint>

#include "ops/cpu/cpu_features.h"
#include "ops/cpu/quant_panel.h"

namespace vlcache::cpu {

// Rows of x as integers v, |v| <= 16256, with a scale for each unit of 32 inputs: 15 bits, so that products with codes
// are exact in 32-bit sums and x loses less than bf16's own rounding. Dot products of bytes take v as 128 hi + lo;
// otherwise v stays whole. Either way the sums are the same integers, and so are results on every instruction set with
// fused multiply-adds.
struct CodedUnit {
  std::byte codes[64];  // [32] s8 of hi, then [32] of lo; or [32] s16, in each quad in the order 0, 2, 1, 3
};
struct UnitSums {
  float scale;
  int32_t sums[2];  // of v over each half
  int32_t unused;
};

// Bytes for n_rows coded rows.
inline int64_t coded_bytes(int64_t n_rows, int64_t n_in) {
  return n_rows * ((n_in + kUnit - 1) / kUnit) * int64_t{sizeof(CodedUnit) + sizeof(UnitSums)};
}

// n_rows rows of n_units units.
struct CodedRows {
  CodedUnit* units;
  UnitSums* sums;
  int64_t n_rows, n_units;

  CodedRows(std::byte* memory, int64_t n_rows, int64_t n_in)
      : units(reinterpret_cast<CodedUnit*>(memory)),
        sums(reinterpret_cast<UnitSums*>(memory + n_rows * ((n_in + kUnit - 1) / kUnit) * int64_t{sizeof(CodedUnit)})),
        n_rows(n_rows),
        n_units((n_in + kUnit - 1) / kUnit) {}

  CodedRows part(int64_t begin, int64_t end) const {  // rows [begin, end)
    CodedRows rows = *this;
    rows.units += begin * n_units, rows.sums += begin * n_units, rows.n_rows = end - begin;
    return rows;
  }
};

// Which multiplications of bytes a kernel uses: none, or VNNI's, of 512 bits from kAvx512 on, of 256 bits on kAvx2.
struct QuantIsa {
  Isa isa;
  bool byte_dots;
};

// Rows of x (f32 or bf16) into `rows`. A row of x with a value that is not finite becomes NaN.
void code_rows(QuantIsa isa, const Tensor& x, const CodedRows& rows);

// acc[r, c] = sum_k x[first_row + r, k] W[c, k] for the 64 outputs of a panel, in one order of sums whatever the number
// of rows.
struct QuantPanelArgs {
  const CodedRows& rows;
  int64_t first_row, n_rows;  // at most kQuantRows
  const QuantLayout& layout;
  const std::byte* panel;
  float* acc;  // [n_rows, 64]
};
inline constexpr int64_t kQuantRows = 4;  // whose sums, 4 x 4 vectors, leave registers for a unit's codes
void quant_panel(QuantIsa isa, const QuantPanelArgs& args);

// A panel in packed.h's layout of dtype bf16 or f32: what QuantRows::dequantise gives, rounded to bf16.
void dequantise_panel(Isa isa, const QuantLayout& layout, const std::byte* panel, DType dtype, std::byte* out);

}  // namespace vlcache::cpu
