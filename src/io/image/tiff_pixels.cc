#include "io/image/tiff_pixels.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "io/image/alpha.h"

namespace vlcache {
namespace {

uint8_t clamp_level(float level) { return static_cast<uint8_t>(std::lround(std::clamp(level, 0.0F, 255.0F))); }

void ycc_to_rgb(const YccRule& rule, const uint8_t* ycc, uint8_t* rgb) {
  const auto& [red, green, blue] = rule.luma;
  const auto& range = rule.range;
  const float y = (static_cast<float>(ycc[0]) - range[0]) * 255 / (range[1] - range[0]);
  const float cb = (static_cast<float>(ycc[1]) - range[2]) * 127 / (range[3] - range[2]);
  const float cr = (static_cast<float>(ycc[2]) - range[4]) * 127 / (range[5] - range[4]);
  const float r = y + cr * (2 - 2 * red), b = y + cb * (2 - 2 * blue);
  rgb[0] = clamp_level(r);
  rgb[1] = clamp_level((y - blue * b - red * r) / green);
  rgb[2] = clamp_level(b);
}

// v - v * ink / 255 with v = 255 - black, rounded as Pillow does.
void cmyk_to_rgb(const uint8_t* ink, uint8_t* rgb) {
  const int v = 255 - ink[3];
  for (int c = 0; c < 3; ++c) {
    const int product = ink[c] * v + 128;
    rgb[c] = static_cast<uint8_t>(std::max(0, v - (((product >> 8) + product) >> 8)));
  }
}

void colour_of(const TiffPixels& pixels, const uint8_t* samples, uint8_t* rgb) {
  switch (pixels.colour) {
    case TiffColour::kGrey:
      std::memset(rgb, samples[0], 3);
      break;
    case TiffColour::kInvertedGrey:
      std::memset(rgb, 255 - samples[0], 3);
      break;
    case TiffColour::kPalette:
      std::memcpy(rgb, pixels.palette[samples[0]].data(), 3);
      break;
    case TiffColour::kRgb:
      std::memcpy(rgb, samples, 3);
      break;
    case TiffColour::kCmyk:
      cmyk_to_rgb(samples, rgb);
      break;
    case TiffColour::kYcc:
      ycc_to_rgb(pixels.ycc, samples, rgb);
      break;
  }
}

}  // namespace

bool YccRule::is_usable() const {
  const auto is_sane = [](float value) { return std::abs(value) <= 1000; };  // false for NaN
  const auto differ = [&](size_t i) { return std::abs(range[i + 1] - range[i]) >= 1; };
  return std::ranges::all_of(luma, is_sane) && std::ranges::all_of(range, is_sane) && std::abs(luma[1]) >= 0.001F &&
         differ(0) && differ(2) && differ(4);
}

void unpack_tiff_samples(const TiffPixels& pixels, const uint8_t* from, int64_t n, uint8_t* to) {
  const int bits = pixels.bits;
  if (bits == 8) {
    std::memcpy(to, from, static_cast<size_t>(n));
    return;
  }
  if (bits == 16) {
    for (int64_t i = 0; i < n; ++i) {
      uint16_t sample = 0;
      std::memcpy(&sample, from + 2 * i, 2);
      to[i] = static_cast<uint8_t>(sample >> 8);
    }
    return;
  }
  const uint32_t most = (1U << bits) - 1;
  const uint32_t scale = pixels.colour == TiffColour::kPalette ? most : 255;
  uint32_t pending = 0;
  int n_pending = 0;
  for (int64_t i = 0; i < n; ++i) {
    for (; n_pending < bits; n_pending += 8) pending = pending << 8 | *from++;
    const uint32_t sample = pending >> (n_pending - bits) & most;
    n_pending -= bits;
    to[i] = static_cast<uint8_t>(bits > 8 ? sample >> (bits - 8) : sample * scale / most);
  }
}

void tiff_samples_to_rgb(const TiffPixels& pixels, const uint8_t* samples, int64_t stride, int64_t n_pixels,
                         uint8_t* rgb) {
  const int n_colours = pixels.n_colours();
  for (int64_t i = 0; i < n_pixels; ++i, samples += stride, rgb += 3) {
    colour_of(pixels, samples, rgb);
    if (pixels.alpha == TiffAlpha::kNone) continue;
    const uint32_t alpha = samples[n_colours];
    for (int c = 0; c < 3; ++c) {
      rgb[c] = pixels.alpha == TiffAlpha::kStraight
                   ? over_white(rgb[c], alpha)
                   : static_cast<uint8_t>(std::min<uint32_t>(255, rgb[c] + 255 - alpha));
    }
  }
}

void spread_ycc_row(const YccBlocks& blocks, const uint8_t* data, int64_t y, uint8_t* samples) {
  const uint8_t* block_row = data + y / blocks.down * blocks.n_across() * blocks.bytes();
  const int64_t n_luma = blocks.across * blocks.down, line = y % blocks.down * blocks.across;
  for (int64_t x = 0; x < blocks.width; ++x, samples += 3) {
    const uint8_t* block = block_row + x / blocks.across * blocks.bytes();
    samples[0] = block[line + x % blocks.across];
    samples[1] = block[n_luma];
    samples[2] = block[n_luma + 1];
  }
}

}  // namespace vlcache
