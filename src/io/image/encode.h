// Encodes images as PNG and base64.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "io/image/image.h"

namespace vlcache {

// The image as PNG. Throws Error(kMemory) if it cannot be encoded.
std::vector<std::byte> encode_png(const Image& image);
// The same for pages of documents, in a tenth of the time: with 1 or 8 bits a pixel where it has no colours, and
// compressed less.
std::vector<std::byte> encode_page(const Image& image);
// The image scaled to at most `max_side` pixels in width and height, each pixel the mean of the pixels it covers.
Image shrink(const Image& image, int64_t max_side);
std::string base64(const std::vector<std::byte>& bytes);

}  // namespace vlcache
