// LLaVA-NeXT's tiles: which grid an image of a given size gets, and which rows of it are picture rather than padding.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace vlcache {

// The {height, width} of `pinpoints` that keeps most of the picture's pixels, then wastes least. `pinpoints` must not
// be empty.
std::array<int64_t, 2> best_resolution(int64_t height, int64_t width,
                                       std::span<const std::array<int64_t, 2>> pinpoints);

// Rows of patches [top, bottom) x columns [left, right) of a grid that show the picture.
struct PatchRect {
  int64_t top = 0, bottom = 0, left = 0, right = 0;
};
PatchRect unpadded_patches(int64_t height, int64_t width, int64_t grid_height, int64_t grid_width);

// The order of an image's tokens as rows of its projected tiles ([1 + rows * cols tiles][side * side], overview first):
// the overview's rows, then the unpadded grid line by line, `newline_row` after each line.
std::vector<int32_t> anyres_order(int64_t tile_rows, int64_t tile_cols, int64_t side, const PatchRect& rect,
                                  int32_t newline_row);

}  // namespace vlcache
