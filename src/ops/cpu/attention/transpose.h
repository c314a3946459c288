// Transposes rows of words into the columns of a page, and back.
#pragma once

#include <cstring>
#include <span>

#include "base/contracts/kv.h"

namespace vlcache::cpu {

using U32x4 = uint32_t __attribute__((vector_size(16)));

inline uint32_t word_at(const std::byte* x) {
  uint32_t word;
  std::memcpy(&word, x, sizeof(word));
  return word;
}

// Four vectors of four words.
inline void transpose_four(U32x4 (&r)[4]) {
  const U32x4 a = __builtin_shufflevector(r[0], r[1], 0, 4, 1, 5), b = __builtin_shufflevector(r[2], r[3], 0, 4, 1, 5);
  const U32x4 c = __builtin_shufflevector(r[0], r[1], 2, 6, 3, 7), e = __builtin_shufflevector(r[2], r[3], 2, 6, 3, 7);
  r[0] = __builtin_shufflevector(a, b, 0, 1, 4, 5), r[1] = __builtin_shufflevector(a, b, 2, 3, 6, 7);
  r[2] = __builtin_shufflevector(c, e, 0, 1, 4, 5), r[3] = __builtin_shufflevector(c, e, 2, 3, 6, 7);
}

// y[c * kPageSlots + i] = word c of row i: K of n rows into columns of a page. Rows are `stride` bytes apart.
inline void transpose_words(const std::byte* x, int64_t stride, int64_t n, int64_t width, uint32_t* y) {
  int64_t i = 0;
  for (; i + 4 <= n; i += 4, x += 4 * stride) {
    int64_t c = 0;
    for (; c + 4 <= width; c += 4) {
      U32x4 r[4];
      for (int k = 0; k < 4; ++k) std::memcpy(&r[k], x + k * stride + 4 * c, sizeof(U32x4));
      transpose_four(r);
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

// Whether the first n of some slots of one page are neighbours.
inline bool is_run(std::span<const int32_t> slots, size_t n) {
  if (slots.size() < n) return false;
  for (size_t i = 1; i < n; ++i) {
    if (slots[i] != slots[0] + static_cast<int32_t>(i)) return false;
  }
  return true;
}

// The reverse, of slots of one page: word c of row i = x[c * kPageSlots + slots[i] % kPageSlots].
inline void gather_words(const uint32_t* x, std::span<const int32_t> slots, int64_t width, std::byte* y,
                         int64_t stride) {
  for (size_t i = 0; i < slots.size();) {
    const uint32_t* column = x + slots[i] % kPageSlots;
    const bool four = is_run(slots.subspan(i), 4);
    std::byte* row = y + static_cast<int64_t>(i) * stride;
    int64_t c = 0;
    for (; four && c + 4 <= width; c += 4) {
      U32x4 r[4];
      for (int k = 0; k < 4; ++k) std::memcpy(&r[k], column + (c + k) * kPageSlots, sizeof(U32x4));
      transpose_four(r);
      for (int k = 0; k < 4; ++k) std::memcpy(row + k * stride + 4 * c, &r[k], sizeof(U32x4));
    }
    const int rows = four ? 4 : 1;
    for (; c < width; ++c) {
      for (int k = 0; k < rows; ++k) std::memcpy(row + k * stride + 4 * c, column + c * kPageSlots + k, 4);
    }
    i += static_cast<size_t>(rows);
  }
}

}  // namespace vlcache::cpu
