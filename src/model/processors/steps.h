// The steps that image processors are made of. Each says what its result shows of the original picture: resizing
// changes nothing about that, cutting does.
#pragma once

#include "io/image/image.h"
#include "io/image/resize.h"
#include "model/image_tiles.h"
#include "model/processors/image_processor.h"
#include "model/processors/settings.h"

namespace vlcache {

// A picture on its way, and the part of the original that it shows.
struct Placed {
  Image image;
  PixelRect shown;
};

PixelRect whole_of(const Image& picture);

Image resize_to(const Image& image, Extent extent, Resample filter, PixelAllowance& allowance);
// Part of a picture that shows `shown`; `colour` where it reaches beyond.
Placed cut_placed(const Image& image, const PixelRect& shown, const CutOut& part, PixelAllowance& allowance,
                  Rgb colour = {0, 0, 0});
// Resizing, then the middle; where the picture is too small for that, black is put around it.
Placed resize_and_crop(const Image& image, const PixelRect& shown, const ProcessorSettings& settings,
                       PixelAllowance& allowance);

// Rescaling and normalising, for every 8-bit value.
ChannelTables value_tables(const ProcessorSettings& settings);

// Tiles of `picture`, none filled yet.
ImageTiles begin_tiles(const Image& picture, int64_t n_tiles);
// Fills the next tile of `out`; the first one allocates. Throws Error(kShape) if its size differs from that of the
// tiles before it.
void append_tile(const Placed& tile, const ChannelTables& tables, ImageTiles* out);

}  // namespace vlcache
