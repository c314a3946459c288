// Turns the samples of a TIFF into 8-bit RGB, with transparency over white; used inside io/image only.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace vlcache {

enum class TiffColour : uint8_t { kGrey, kInvertedGrey, kPalette, kRgb, kCmyk, kYcc };
enum class TiffAlpha : uint8_t { kNone, kStraight, kPremultiplied };

// YCbCr to RGB, with the levels and weights that a file states (TIFF 6.0, section 21).
struct YccRule {
  std::array<float, 3> luma{0.299F, 0.587F, 0.114F};       // red, green, blue
  std::array<float, 6> range{0, 255, 128, 255, 128, 255};  // black and white of Y, Cb, Cr

  // Whether every value gives finite colours.
  bool is_usable() const;
};

struct TiffPixels {
  TiffColour colour = TiffColour::kGrey;
  TiffAlpha alpha = TiffAlpha::kNone;
  int bits = 8;                                       // 1 to 16 in a sample
  std::array<std::array<uint8_t, 3>, 256> palette{};  // RGB
  YccRule ycc;

  int n_colours() const { return colour == TiffColour::kCmyk ? 4 : colour < TiffColour::kRgb ? 1 : 3; }
  int n_used() const { return n_colours() + (alpha == TiffAlpha::kNone ? 0 : 1); }  // samples of a pixel
};

// to[n]: n packed samples of pixels.bits, most significant bit first, but 16 bits in the machine's order. A level
// of fewer bits becomes that of 8 bits, of more its high byte; an index of a palette stays as it is.
void unpack_tiff_samples(const TiffPixels& pixels, const uint8_t* from, int64_t n, uint8_t* to);

// rgb[3 * n_pixels] of pixels that have `stride` samples each, of which the first n_used() count.
void tiff_samples_to_rgb(const TiffPixels& pixels, const uint8_t* samples, int64_t stride, int64_t n_pixels,
                         uint8_t* rgb);

// Blocks of luma samples that share one Cb and one Cr, as TIFF stores them: all of the first row of blocks, then the
// next.
struct YccBlocks {
  int64_t width;                 // pixels of a row
  int64_t across = 1, down = 1;  // luma samples of a block

  int64_t n_across() const { return (width + across - 1) / across; }
  int64_t bytes() const { return across * down + 2; }  // of a block
};
// samples[3 * width]: row `y` of the pixels, each with the Cb and Cr of its block.
void spread_ycc_row(const YccBlocks& blocks, const uint8_t* data, int64_t y, uint8_t* samples);

}  // namespace vlcache
