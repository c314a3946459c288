// Reads the orientation a camera notes in EXIF or XMP, and turns an image upright.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "io/image/image.h"

namespace vlcache {

// Orientation (1..8) in an EXIF block, with or without its "Exif\0\0" prefix; 0 if the block has none or is invalid.
// Our own reader rather than libexif's: it must accept exactly the entries that Pillow accepts, and needs only one tag.
int exif_orientation(std::span<const uint8_t> exif);
// The tiff:Orientation of an XMP packet; 0 if it has none.
int xmp_orientation(std::string_view xmp);
// EXIF first, XMP if EXIF has none, 1 if neither has.
int choose_orientation(std::span<const uint8_t> exif, std::string_view xmp);

// The image turned upright (PIL.ImageOps.exif_transpose).
Image apply_orientation(Image image, int orientation);

}  // namespace vlcache
