// Declares the parts of dequantise_panel: places of values, and the values of one block with instructions of some CPUs.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/cpu/quant/quant_panel.h"

namespace vlcache::cpu {

// Places of values in f32: how many floats lie from an input to the next, and from kStrip outputs to the next.
struct ValuePlaces {
  std::byte* out;
  size_t input, strip;
};

// What codes stand for before they are scaled: the entries of a table (4 bits), or the code less an offset.
struct CodeValues {
  alignas(64) float of_4_bits[16];
  float offset;
};

// The codes of a block with its scales, and its minima (zero in a form without), [bands][64] each.
struct BlockCodes {
  const CodeValues& values;
  const std::byte* units;
  int64_t n_units, bands;
  const float *scales, *mins;
};

// Writes the values as pairs of bf16, [n_units * 16][64 outputs][2].
using BlockToPairs = void (*)(const BlockCodes& block, std::byte* out);

// Requires Isa::kAvx512Bf16. Its rounding takes what lies below the normal numbers for zero.
BlockToPairs block_to_pairs_avx512bf16(const QuantForm& form);

}  // namespace vlcache::cpu
