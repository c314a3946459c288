// dedup_cells() chooses the cells of an image that its neighbours do not predict: the others are dropped before the
// encoder (PixelPrune, arXiv:2604.00886).
#pragma once

#include <array>
#include <cstdint>

#include "model/config.h"
#include "model/images/image_tiles.h"

namespace vlcache {

struct CellDedup {
  // A cell is like another if no channel of a pixel differs by more than this share of its range, 0 to 1. 0: only equal
  // cells are dropped.
  float tolerance = 0;
  bool weighted = false;  // KeptCells::weighted
  bool operator==(const CellDedup&) const = default;
};

// Throws Error(kInput) that names the model unless its images are one grid of any size.
void check_takes_dedup(const ModelConfig& config);

// The cells, `cell` pixels on a side, of an image of one tile with its pixels, all frames together. In raster order,
// with A on the left, B above and C above on the left, a cell is predicted by B if C is like A and not like B, else by
// A (in the first line by the left one, in the first column by the one above). It is dropped if it is like its
// prediction, which then stands for both: for later cells, a dropped cell looks like the one that stands for it, so
// that differences do not add up. range: of each channel's values, from black to white.
//   PixelPrune's `pred_2d` with its metric `max`, anchored. Its code compares normalised values, so its threshold is
//   twice this tolerance where the standard deviation is 0.5.
KeptCells dedup_cells(const ImageTiles& image, int64_t cell, const std::array<float, 3>& range, const CellDedup& how);

}  // namespace vlcache
