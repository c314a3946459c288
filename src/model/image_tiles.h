// One image as a vision encoder takes it: the pixels of its tiles, and where they came from.
#pragma once

#include <cstdint>

#include "base/tensor.h"

namespace vlcache {

struct ImageTiles {
  Tensor pixels;  // [n_tiles, C, tile_height, tile_width] f32, normalised
  int32_t rows = 0,
          cols = 0;  // grid of split tiles; 0, 0: the image was not split. The overview tile comes extra:
                     // first for LLaVA-NeXT, last for Idefics3 and SmolVLM, as their image processors order them
  int64_t height = 0, width = 0;  // of the picture before any resizing
};

}  // namespace vlcache
