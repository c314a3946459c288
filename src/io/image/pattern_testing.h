// Provides, for image tests, the computed image of tools/fixtures/images/pattern.py, and SHA-256 in the form its
// fixtures have.
#pragma once

#include <openssl/sha.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "io/image/image.h"

namespace vlcache {

inline Image pattern(int64_t width, int64_t height) {
  Image image(width, height);
  for (int64_t y = 0; y < height; ++y) {
    for (int64_t x = 0; x < width; ++x) {
      for (int64_t c = 0; c < 3; ++c) {
        const bool block = (x / 16 + y / 16) % 5 == 0;
        const int64_t value =
            block ? 255 * ((x / 16 + c) & 1) : ((x * 7 + y * 3 * (c + 1)) ^ ((x >> 3) * (y >> 2) * 17)) & 255;
        image.row(y)[3 * x + c] = static_cast<uint8_t>(value);
      }
    }
  }
  return image;
}

inline std::string sha256_hex(const void* data, size_t bytes) {
  unsigned char digest[SHA256_DIGEST_LENGTH];
  SHA256(static_cast<const unsigned char*>(data), bytes, digest);
  std::string hex;
  for (const unsigned char byte : digest) hex.append({"0123456789abcdef"[byte >> 4], "0123456789abcdef"[byte & 15]});
  return hex;
}

}  // namespace vlcache
