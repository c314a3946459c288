// prune_unit() chooses the cells of a video's unit that changed since the unit before: the others are dropped before
// the encoder.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "io/image/image.h"
#include "model/images/image_tiles.h"

namespace vlcache {

// `unit` and `before` are the frames of two units, resized to one size, which `cell` (pixels on a side) divides; the
// last frame of a unit is repeated where the other one has more. Of the n cells, the share * n (rounded) of the least
// sum of absolute differences from the same place in `before` are dropped, of equal ones the later in raster order, but
// never all. share: 0 to 1. None: nothing is dropped.
std::optional<KeptCells> prune_unit(std::span<const Image> unit, std::span<const Image> before, int64_t cell,
                                    double share);

}  // namespace vlcache
