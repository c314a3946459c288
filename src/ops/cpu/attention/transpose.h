// Transposes rows of words into the columns of a page.
#pragma once

#include <cstring>

#include "base/contracts/kv.h"

namespace vlcache::cpu {

using U32x4 = uint32_t __attribute__((vector_size(16)));

inline uint32_t word_at(const std::byte* x) {
  uint32_t word;
  std::memcpy(&word, x, sizeof(word));
  return word;
}

// y[c * kPageSlots + i] = word c of row i: K of n rows into columns of a page. Rows are `stride` bytes apart.
inline void transpose_words(const std::byte* x, int64_t stride, int64_t n, int64_t width, uint32_t* y) {
  int64_t i = 0;
  for (; i + 4 <= n; i += 4, x += 4 * stride) {
    int64_t c = 0;
    for (; c + 4 <= width; c += 4) {
      U32x4 r[4], h[4];
      for (int k = 0; k < 4; ++k) std::memcpy(&r[k], x + k * stride + 4 * c, sizeof(U32x4));
      h[0] = __builtin_shufflevector(r[0], r[1], 0, 4, 1, 5), h[1] = __builtin_shufflevector(r[2], r[3], 0, 4, 1, 5);
      h[2] = __builtin_shufflevector(r[0], r[1], 2, 6, 3, 7), h[3] = __builtin_shufflevector(r[2], r[3], 2, 6, 3, 7);
      r[0] = __builtin_shufflevector(h[0], h[1], 0, 1, 4, 5), r[1] = __builtin_shufflevector(h[0], h[1], 2, 3, 6, 7);
      r[2] = __builtin_shufflevector(h[2], h[3], 0, 1, 4, 5), r[3] = __builtin_shufflevector(h[2], h[3], 2, 3, 6, 7);
      for (int k = 0; k < 4; ++k) std::memcpy(y + (c + k) * kPageSlots + i, &r[k], sizeof(U32x4));
    }
    for (; c < width; ++c) {
      for (int k = 0; k < 4; ++k) y[c * kPageSlots + i + k] = word_at(x + k * stride + 4 * c);
    }
  }
  for (; i < n; ++i, x += stride) {
    for (int64_t c = 0; c < width; ++c) y[c * kPageSlots + i] = word_at(x + 4 * c);
  }
}

}  // namespace vlcache::cpu
