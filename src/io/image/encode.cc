// libpng's simplified interface; averaging; base64 of RFC 4648.
#include "io/image/encode.h"

#include <png.h>

#include <algorithm>

#include "base/error.h"
#include "io/image/resize.h"

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
  return resize(image, std::max<int64_t>(1, image.width * max_side / longer),
                std::max<int64_t>(1, image.height * max_side / longer), Resample::kBox);
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
