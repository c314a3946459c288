// Declares the kernels that read quantised panels: a few rows of x with the codes as they are, and a panel as values.
#pragma once

#include <array>
#include <cstdint>

#include "ops/cpu/cpu_features.h"
#include "ops/cpu/quant/quant_panel.h"

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
  float sums[2] = {};      // of scale v over the unit, or over each half where groups are halves: what minima multiply
  int32_t starts[2] = {};  // minus the same of v, times what codes exceed their values by: where integer sums start
  int32_t unused[3] = {};
};

// n_rows rows of n_units units, some rows at a time: the units 0 of a group's rows, then their units 1, ...
struct CodedRows {
  CodedUnit* units;
  UnitSums* sums;
  int64_t n_rows, n_units;
  int64_t group;

  // Of rows that fill their groups.
  static int64_t bytes(int64_t n_rows, int64_t n_in, int64_t group) {
    return round_up(n_rows, group) * units_of(n_in) * int64_t{sizeof(CodedUnit) + sizeof(UnitSums)};
  }
  static int64_t units_of(int64_t n_in) { return (n_in + kUnit - 1) / kUnit; }

  CodedRows(std::byte* memory, int64_t n_rows, int64_t n_in, int64_t group)
      : units(reinterpret_cast<CodedUnit*>(memory)),
        sums(reinterpret_cast<UnitSums*>(units + round_up(n_rows, group) * units_of(n_in))),
        n_rows(n_rows),
        n_units(units_of(n_in)),
        group(group) {}

  int64_t at(int64_t row, int64_t unit) const { return (row / group * n_units + unit) * group + row % group; }
  CodedRows part(int64_t begin, int64_t end) const {  // rows [begin, end), from a group's first one
    CodedRows rows = *this;
    rows.units += begin * n_units, rows.sums += begin * n_units, rows.n_rows = end - begin;
    return rows;
  }
};

// Whether a kernel multiplies bytes by VNNI, of 512 bits from kAvx512 on, of 256 bits on kAvx2. Without it, words are
// multiplied, but with codes of 4 bits on kAvx2 pairs of bytes.
struct QuantIsa {
  Isa isa;
  bool byte_dots;
};

// Codes whose products with 8 quads of signed bytes fit sums of 16 bits: up to 15.
constexpr bool fit_pairs(int bits, bool table) { return bits == 4 && !table; }

// Rows of x (f32 or bf16) into `rows`, for products with codes of a form. A row of x with a value that is not finite
// becomes NaN.
struct CodedAs {
  QuantForm form;
  ActivationBits bits = ActivationBits::k15;  // k8: |v| <= 127
  bool one_byte = false;                      // k8: units are [32] s8 of v alone, where dot products take bytes
  bool words = false;                         // also where pairs of bytes would be multiplied
};
void code_rows(QuantIsa isa, const Tensor& x, const CodedAs& as, const CodedRows& rows);

// acc[r, c] = sum_k x[first_row + r, k] W[c, k] for the 64 outputs of a panel, in one order of sums whatever the number
// of rows.
struct QuantPanelArgs {
  const CodedRows& rows;
  int64_t first_row, n_rows;
  const QuantLayout& layout;
  const std::byte* panel;
  float* acc;  // [n_rows, 64]
};
// One group of at most quant_rows(isa) rows: on 512 bits their sums, 4 x 4 vectors, leave registers for a unit's codes.
// Sums of words wait for an addition alone, so rows beside each other gain nothing: 12 rows one by one take 0.76 of the
// time of a group.
inline int64_t quant_rows(QuantIsa isa) { return isa.byte_dots && isa.isa >= Isa::kAvx512 ? 4 : 1; }
// Whether quant_panel is compiled for a form, because --weights, checkpoints or GGUF files have it: 4 bits in groups of
// 32 and more (int4, GPTQ, AWQ; Q4_0, Q4_1, Q4_K) and of 16 (Q2_K, Q3_K), 4 bits by a table likewise (MXFP4, IQ4_NL,
// IQ4_XS; NVFP4), 5 bits (Q5_0, Q5_1, Q5_K), int6 and 6 bits in groups of 16 (Q6_K), 8 bits in groups of 32 and more
// (int8, Q8_0). The others are quant_groups', which gives the same bits in up to 1.4 of the time.
inline bool has_few_rows_kernel(const QuantForm& form) {
  if (form.bits == 6) return form.group == 16 || (form.scale == kInt6.scale && form.min == kInt6.min);
  return form.bits != 8 || form.group >= kUnit;
}
void quant_panel(QuantIsa isa, const QuantPanelArgs& args);
// To the bit the same for any number of rows, from a group's first one, with sums in memory; groups of at most
// kMostGrouped rows: two sums a row and a unit's codes then fill the 32 registers of 512 bits. One group of 12 rows
// takes 0.87 of the time of 6 and 6 (measured in 4 bits, 11264 x 2048); 15 in one took 1.08 of that of 8 and 7.
// one_byte: of CodedAs.
inline constexpr int64_t kMostGrouped = 12;
void quant_groups(QuantIsa isa, const QuantPanelArgs& args, bool one_byte);

// Some inputs of a panel as the kernels of many rows read them: codes as bytes
// [n_units][8 quads][64 outputs][4] or words [n_units][8 quads][2][64 outputs][2], of inputs 0 and 2, and 1 and 3; its
// scales and minima as f32 [n_units][bands][64].
inline constexpr int64_t kCodedGroup = 8;  // rows of a group for tiles
struct CodeTile {
  uint32_t* codes;
  float *scales, *mins;
  int64_t n_units, bands;
  bool words;
};
bool has_code_tiles(QuantIsa isa);  // with VNNI, and on AVX2
// Words, also of x, without VNNI, unless codes have 4 bits and x 8: products of such bytes need no wider sums.
bool tile_has_words(QuantIsa isa, const QuantForm& form, ActivationBits bits);

// Inputs of a tile: so many that it lies in an L1 of 32 KiB beside a few rows.
constexpr int64_t code_tile_inputs(bool words) { return words ? kBlockInputs / 2 : kBlockInputs; }
// Bytes of a tile at most.
inline constexpr int64_t kCodeTileBytes =
    kBlockInputs * kPanel + 2 * kBlockInputs / 16 * kPanel * int64_t{sizeof(float)};
// The one from input `first` on, in `memory`.
struct CodeTilePart {
  const std::byte* panel;
  int64_t first;
  bool words;
};
CodeTile read_code_tile(Isa isa, const QuantLayout& layout, const CodeTilePart& part, std::byte* memory);

// sums[r, c] += the products of a tile with rows [first_row, first_row + n_rows), for 64 outputs: over all inputs, to
// the bit what quant_panel gives. Rows are coded as the tile is, kCodedGroup in a group, and begin one.
struct CodeTileArgs {
  const CodedRows& rows;
  int64_t first_row, n_rows;
  int64_t first_unit;
  const CodeTile& tile;
  ActivationBits bits;
  float* sums;                           // [n_rows rounded up to kCodedGroup, 64], aligned to a cache line
  std::span<const std::byte> next = {};  // read next: fetched beside the products
};
void multiply_code_tile(QuantIsa isa, const CodeTileArgs& args);

// A panel in packed.h's layout of dtype bf16 or f32: what QuantRows::dequantise gives, rounded to bf16.
void dequantise_panel(Isa isa, const QuantLayout& layout, const std::byte* panel, DType dtype, std::byte* out);
// A block of it in f32, as packed.h's strips: n inputs, kBlockInputs at most, from a multiple of as many on.
void dequantise_strips(Isa isa, const QuantLayout& layout, const std::byte* panel, int64_t first, int64_t n,
                       float* strips);

}  // namespace vlcache::cpu
