// Resamples 8-bit RGB images, equal to Pillow to the bit, and crops and pads them.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "io/image/image.h"

namespace vlcache {

// Numbered as PIL.Image.Resampling and the `resample` key of image processors.
enum class Resample { kNearest = 0, kLanczos = 1, kBilinear = 2, kBicubic = 3, kBox = 4, kHamming = 5 };

// `image` at width x height: PIL.Image.resize(..., reducing_gap=None) of Pillow 13 on 8-bit data: two passes, each in
// fixed point and rounded to 8 bits; a pass that would not change the size is left out. Runs on all threads. Throws
// Error(kShape) unless 0 < width, height and both the result and the image between the passes stay within `limits`.
Image resize(const Image& image, int64_t width, int64_t height, Resample filter, const ImageLimits& limits = {});

using Rgb = std::array<uint8_t, 3>;

// Columns [x, x + width) and rows [y, y + height) of the plane on which an image lies at (0, 0); it may reach beyond
// the image on every side.
struct CutOut {
  int64_t x = 0, y = 0, width = 0, height = 0;
};

// Crops and pads at once: that part of the plane, `colour` outside of the image. Throws Error(kShape) unless 0 < width,
// height and the result stays within `limits`.
Image cut_out(const Image& image, const CutOut& part, Rgb colour = {0, 0, 0}, const ImageLimits& limits = {});

// The float value of each 8-bit value, per channel: [3][256].
using ChannelTables = std::array<std::array<float, 256>, 3>;

// out[c, y, x] = tables[c][image[y, x, c]]; out: [3, image.height, image.width], dense.
void to_planes(const Image& image, const ChannelTables& tables, std::span<float> out);

}  // namespace vlcache
