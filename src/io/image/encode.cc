// libpng's simplified interface; averaging; base64 of RFC 4648.
#include "io/image/encode.h"

#include <png.h>

#include <algorithm>

#include "base/error.h"

namespace vlcache {

std::vector<std::byte> encode_png(const Image& image) {
  png_image png{};
  png.version = PNG_IMAGE_VERSION;
  png.width = static_cast<png_uint_32>(image.width);
  png.height = static_cast<png_uint_32>(image.height);
  png.format = PNG_FORMAT_RGB;
  png_alloc_size_t size = 0;
  std::vector<std::byte> bytes;
  for (const bool sized : {false, true}) {
    if (sized) bytes.resize(size);
    if (png_image_write_to_memory(&png, sized ? bytes.data() : nullptr, &size, 0, image.rgb.data(), 0, nullptr) == 0) {
      throw Error(ErrorCode::kMemory, std::string("a PNG cannot be made: ") + png.message);
    }
  }
  bytes.resize(size);
  return bytes;
}

Image shrink(const Image& image, int64_t max_side) {
  const int64_t longer = std::max(image.width, image.height);
  if (longer <= max_side) return image;
  Image small(std::max<int64_t>(1, image.width * max_side / longer),
              std::max<int64_t>(1, image.height * max_side / longer));
  for (int64_t y = 0; y < small.height; ++y) {
    const int64_t top = y * image.height / small.height,
                  bottom = std::max(top + 1, (y + 1) * image.height / small.height);
    for (int64_t x = 0; x < small.width; ++x) {
      const int64_t left = x * image.width / small.width,
                    right = std::max(left + 1, (x + 1) * image.width / small.width);
      for (int64_t c = 0; c < 3; ++c) {
        int64_t sum = 0;
        for (int64_t v = top; v < bottom; ++v) {
          for (int64_t u = left; u < right; ++u) sum += image.row(v)[3 * u + c];
        }
        small.row(y)[3 * x + c] = static_cast<uint8_t>(sum / ((bottom - top) * (right - left)));
      }
    }
  }
  return small;
}

std::string base64(const std::vector<std::byte>& bytes) {
  constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t three = 0;
    for (size_t j = 0; j < 3; ++j)
      three = three << 8 | (i + j < bytes.size() ? static_cast<uint32_t>(bytes[i + j]) : 0);
    for (size_t j = 0; j < 4; ++j) text += i + j <= bytes.size() ? kDigits[three >> (18 - 6 * j) & 63] : '=';
  }
  return text;
}

}  // namespace vlcache
