// Defines a matrix of panels of values: packed ones, or quantised ones that become values when they are asked for.
#pragma once

#include <algorithm>
#include <span>

#include "ops/cpu/matmul/block_kernel.h"
#include "ops/cpu/packed.h"
#include "ops/cpu/quant/quant_kernel.h"

namespace vlcache::cpu {

struct PanelSource {
  Isa isa;
  Panels values;  // no data where there are codes
  const QuantPanels* codes = nullptr;

  bool quantised() const { return codes != nullptr; }
  // Panel i, in `memory` if it is quantised.
  const std::byte* panel(int64_t i, std::byte* memory) const {
    if (!quantised()) return values.panel(i);
    dequantise_panel(isa, codes->layout, codes->panel(i), values.dtype, memory);
    return memory;
  }

  // The block of panel i that begins at input `first`: its memory, and its weights as strips.
  std::span<const std::byte> block(int64_t i, int64_t first) const {
    if (quantised()) return codes->inputs(i, first, kBlockInputs);
    const int64_t n = std::min(kBlockInputs, padded_inputs(values.dtype, values.n_in) - first);
    const int64_t input_bytes = kPanel * dtype_bytes(values.dtype);
    return {values.panel(i) + first * input_bytes, static_cast<size_t>(n * input_bytes)};
  }
  void widen(int64_t i, int64_t first, float* strips) const {
    const int64_t n = std::min(kBlockInputs, values.n_in - first);
    if (quantised()) return dequantise_strips(isa, codes->layout, codes->panel(i), first, n, strips);
    widen_to_strips(isa, values.dtype, block(i, first).data(), n, strips);
  }
};

}  // namespace vlcache::cpu
