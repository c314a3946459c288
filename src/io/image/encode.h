// Pictures to bytes.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "io/image/image.h"

namespace vlcache {

// A PNG of the picture. Throws Error(kMemory) where it cannot be made.
std::vector<std::byte> encode_png(const Image& image);
// The picture at most `max_side` pixels wide and high, each pixel the mean of those it covers.
Image shrink(const Image& image, int64_t max_side);
std::string base64(const std::vector<std::byte>& bytes);

}  // namespace vlcache
