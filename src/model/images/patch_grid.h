// PatchOrder: the order in which a vision encoder computes the patches of a tile. Also the positions of patches of
// grids of any size: rotations and interpolated embeddings.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/tensor.h"
#include "model/config.h"

namespace vlcache {

// Patches of a tile, in raster order where nothing else is said.
struct PatchGrid {
  int64_t rows = 0, cols = 0;
  int64_t n() const { return rows * cols; }
};

// The encoder computes window after window, in each of them square after square (VisionConfig::merge).
struct PatchOrder {
  std::vector<int32_t> patches;   // [n] the patch of each row
  std::vector<int32_t> features;  // [n] the row of each patch in the order of the features: square after square
  std::vector<int32_t> windows;   // ascending row numbers at which windows that have rows begin, 0 first, n last
};
// The grid's sides must be multiples of `merge`. Windows as in transformers' get_vision_window_index. Of some squares
// alone (`cells`: their numbers in raster order, ascending; empty: all), each in the window of its place.
PatchOrder patch_order(const VisionConfig& config, PatchGrid grid, std::span<const int32_t> cells = {});

// cos, sin [n, head_dim / 2] f32 for the patches in `order`: the first half of the angles is that of the row, the
// second that of the column. In f32, as transformers' axial rope.
void fill_patch_rotations(const VisionConfig& config, PatchGrid grid, const std::vector<int32_t>& order,
                          const Tensor& cos, const Tensor& sin);

// out [grid.n(), h] f32 = table [side * side, h] f32 resampled to the grid (bilinear), as transformers'
// get_vision_interpolation_indices_and_weights: positions kAlignedCorners or kAlignedEdges.
void interpolate_positions(const Tensor& table, int64_t side, VisionPositions positions, PatchGrid grid,
                           const Tensor& out);

}  // namespace vlcache
