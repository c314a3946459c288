// Lays out LLaVA-NeXT's tiles: which of a grid's patches show the image rather than padding, and in which order they
// become tokens.
#pragma once

#include <cstdint>
#include <vector>

#include "model/config.h"
#include "model/images/image_tiles.h"

namespace vlcache {

// Patches [top, bottom) x [left, right) of a grid.
struct PatchRect {
  int64_t top = 0, bottom = 0, left = 0, right = 0;
};

// The part of a grid_height x grid_width grid that shows an image of height x width centred in it at its own aspect
// ratio.
PatchRect unpadded_patches(int64_t height, int64_t width, int64_t grid_height, int64_t grid_width);

struct AnyresLayout {
  int64_t tile_rows = 0, tile_cols = 0;
  PatchRect rect;  // in patches of the whole grid
};

// Layout of an image under a LLaVA-NeXT configuration. Throws Error(kInput) if its tiles do not match that grid.
AnyresLayout anyres_layout(const ModelConfig& config, const ImageTiles& image);

// The order of an image's tokens as rows of its projected tiles ([1 + tile_rows * tile_cols] x [side * side], overview
// first): the overview's rows, then the unpadded grid line by line, kNewlineRow after each line.
std::vector<int32_t> anyres_order(const AnyresLayout& layout, int64_t side);

}  // namespace vlcache
