// Decodes image files: JPEG, PNG, WebP, BMP, GIF and TIFF bytes become 8-bit RGB, equal to Pillow's result except for
// 16 bits a sample, with transparency over white.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>
#include <vector>

namespace vlcache {

struct Image {
  int64_t width = 0, height = 0;
  std::vector<uint8_t> rgb;  // [height, width, 3]

  Image() = default;
  Image(int64_t width, int64_t height);  // black
  uint8_t* row(int64_t y) { return rgb.data() + y * width * 3; }
  const uint8_t* row(int64_t y) const { return rgb.data() + y * width * 3; }
};

struct ImageLimits {
  // Twice Pillow's MAX_IMAGE_PIXELS (1 GiB / 4 / 3): the size from which Pillow refuses to decode.
  int64_t max_pixels = 178'956'970;
  int64_t max_side = 262'144;  // bounds the resampler's weights, which grow with the longer side; JPEG ends at 65535
  int64_t max_bytes = int64_t{512} << 20;  // of the file; a 16-bit RGBA PNG at the pixel limit compresses to less
};

// Decodes `bytes`, whose first bytes tell the format, to the image that transformers' image processors see when they
// are given PIL.Image.open of the file (Pillow 13): the EXIF (or XMP) orientation applied, then their convert_to_rgb,
// which blends transparency with white, as a viewer with a white page does (load_image of transformers would drop alpha
// and show the hidden colours). Unlike in Pillow, which saturates 16-bit grey at 255, all 16-bit samples become their
// high byte. Of an animation, the first frame is returned, of a TIFF the first page. `where` names the source in
// errors. Throws Error: kUnsupported (other formats, variants), kInput (corrupted, truncated, empty), kMemory (beyond a
// limit, found before the pixels are allocated).
Image decode_image(std::span<const std::byte> bytes, std::string_view where, const ImageLimits& limits = {});
// Of an image file, by its first bytes, such as image/png; "": none that decode_image reads.
std::string_view media_type(std::span<const std::byte> bytes);

// The bytes of an image file. Throws Error: kNotFound, kIo, kMemory (larger than limits.max_bytes).
std::vector<std::byte> read_image_file(const std::filesystem::path& path, const ImageLimits& limits = {});
// Reads and decodes an image file.
Image load_image(const std::filesystem::path& path, const ImageLimits& limits = {});

}  // namespace vlcache
