// Applies the epilogue of a matrix product to its sums: bias, activation, residual, rounding.
#pragma once

#include <cstdint>

#include "ops/backend.h"
#include "ops/cpu/cpu_features.h"

namespace vlcache::cpu {

// A block of finished sums, f32, rows `ld` elements apart, and its place in y.
struct SumTile {
  const float* sums;
  int64_t ld;
  int64_t row, n_rows;
  int64_t column, n_columns;
};

// y[tile] = act(sums + bias) + residual.
void finish_tile(Isa isa, const SumTile& tile, const Epilogue& epilogue, const Tensor& y);

}  // namespace vlcache::cpu
