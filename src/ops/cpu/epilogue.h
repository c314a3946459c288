// What happens to sums on their way out of a matrix product: bias, activation, residual, rounding.
#pragma once

#include <cstdint>

#include "ops/backend.h"
#include "ops/cpu/cpu_features.h"

namespace vlcache::cpu {

// A block of finished sums, f32, `ld` apart, and where in y it belongs.
struct SumTile {
  const float* sums;
  int64_t ld;
  int64_t row, n_rows;
  int64_t column, n_columns;
};

// y[tile] = act(sums + bias) + residual.
void finish_tile(Isa isa, const SumTile& tile, const Epilogue& epilogue, const Tensor& y);

}  // namespace vlcache::cpu
