// Declares what the decoders of image formats share; used inside io/image only.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"
#include "io/image/image.h"

namespace vlcache {

struct DecodeInput {
  std::span<const uint8_t> bytes;
  std::string_view where;
  const ImageLimits& limits;
};

struct Decoded {
  Image image;
  int orientation = 1;  // EXIF: 1 upright, 2..8 to be undone
};

[[noreturn]] void fail_image(const DecodeInput& in, std::string_view format, std::string_view what,
                             ErrorCode code = ErrorCode::kInput);
// Throws Error unless 0 < width, height and both are within the limits. Call before allocating anything of
// that size.
void check_dimensions(const DecodeInput& in, std::string_view format, int64_t width, int64_t height);

Decoded decode_jpeg(const DecodeInput& in);
Decoded decode_png(const DecodeInput& in);
Decoded decode_webp(const DecodeInput& in);
Decoded decode_bmp(const DecodeInput& in);
Decoded decode_gif(const DecodeInput& in);
Decoded decode_tiff(const DecodeInput& in);  // the first page

// Throws Error if a JPEG within a file has more scans than an image of so many pixels may have: each costs a pass over
// all of them.
void check_jpeg_scans(const DecodeInput& in, std::string_view format, std::span<const uint8_t> jpeg, int64_t n_pixels);

// Little-endian reads; the caller has checked the bounds.
inline uint32_t read_u16(const uint8_t* p) { return static_cast<uint32_t>(p[0] | p[1] << 8); }
inline uint32_t read_u32(const uint8_t* p) { return read_u16(p) | read_u16(p + 2) << 16; }

}  // namespace vlcache
