// Declares the steps of image processors. Each also returns the part of the original image that its result shows:
// cutting changes that part, resizing does not.
#pragma once

#include <array>

#include "io/image/image.h"
#include "io/image/resize.h"
#include "model/images/image_tiles.h"
#include "model/processors/image_processor.h"
#include "model/processors/settings.h"

namespace vlcache {

// An image between two steps, and the part of the original that it shows.
struct Placed {
  Image image;
  PixelRect shown;
};

PixelRect whole_of(const Image& image);

Image resize_to(const Image& image, Extent extent, Resample filter, PixelAllowance& allowance);
// Part of an image that shows `shown`; `colour` where it reaches beyond.
Placed cut_placed(const Image& image, const PixelRect& shown, const CutOut& part, PixelAllowance& allowance,
                  Rgb colour = {0, 0, 0});
// Resizing, then cropping the middle; an image too small for that is padded with black.
Placed resize_and_crop(const Image& image, const PixelRect& shown, const ProcessorSettings& settings,
                       PixelAllowance& allowance);

// Tables for rescaling and normalising every 8-bit value.
ChannelTables value_tables(const ProcessorSettings& settings);
// ImageProcessor::value_range of these tables.
std::array<float, 3> range_of(const ChannelTables& tables);

// Tiles of `image`, none filled yet.
ImageTiles begin_tiles(const Image& image, int64_t n_tiles);
// Fills the next tile of `out`; the first one allocates. Throws Error(kShape) if its size differs from that of the
// tiles before it.
void append_tile(const Placed& tile, const ChannelTables& tables, ImageTiles* out);

}  // namespace vlcache
