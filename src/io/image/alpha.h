// Blends transparency: images are shown on a white page; used inside io/image only.
#pragma once

#include <cstdint>

#include "io/image/image.h"

namespace vlcache {

// An 8-bit sample of opacity `alpha` over white: v a / 255 + 255 (1 - a / 255), rounded. Equal to Pillow's
// alpha_composite on an opaque white background for all 65536 arguments, though that calculates with 7 more bits.
inline uint8_t over_white(uint32_t value, uint32_t alpha) {
  return static_cast<uint8_t>((value * alpha + 255 * (255 - alpha) + 127) / 255);
}

// `image->rgb` holds RGBA, [height, width, 4]; it becomes RGB in place.
void blend_with_white(Image* image);

}  // namespace vlcache
