// Inner loops of the resampler, on GCC's and Clang's portable vectors; with AVX2 where the processor has it. Integer
// sums, so every way to order them gives the same result.
#include "io/image/resize_kernels.h"

#include <algorithm>
#include <cstring>

namespace vlcache {
namespace {

typedef int32_t Int8x32 __attribute__((vector_size(32)));
typedef uint8_t Byte8 __attribute__((vector_size(8)));

constexpr int32_t kHalf = 1 << (kWeightBits - 1);

inline uint8_t to_byte(int32_t sum) { return static_cast<uint8_t>(std::clamp(sum >> kWeightBits, 0, 255)); }

// A macro because a vector may not cross a call between functions of different targets.
#define LOAD_BYTES(vector, from)                       \
  do {                                                 \
    Byte8 bytes_;                                      \
    std::memcpy(&bytes_, from, sizeof(bytes_));        \
    vector = __builtin_convertvector(bytes_, Int8x32); \
  } while (0)

__attribute__((always_inline)) inline void resample_row_body(const HorizontalPass& pass, const uint8_t* row,
                                                             uint8_t* out) {
  const int64_t n = pass.n_taps * 3;
  for (int64_t x = 0; x < pass.width; ++x) {
    const uint8_t* from = row + 3 * int64_t{pass.first[x]};
    const int32_t* weights = pass.weights + x * n;
    Int8x32 sums[3] = {};
    for (int64_t i = 0; i < n; i += 3 * kTapBlock) {
      for (int64_t part = 0; part < 3; ++part) {
        Int8x32 pixels, w;
        LOAD_BYTES(pixels, from + i + 8 * part);
        std::memcpy(&w, weights + i + 8 * part, sizeof(w));
        sums[part] += pixels * w;
      }
    }
    int32_t lanes[24];
    std::memcpy(lanes, sums, sizeof(lanes));
    int32_t rgb[3] = {kHalf, kHalf, kHalf};
    for (int i = 0; i < 24; ++i) rgb[i % 3] += lanes[i];
    for (int c = 0; c < 3; ++c) out[3 * x + c] = to_byte(rgb[c]);
  }
}

__attribute__((always_inline)) inline void combine_rows_body(const int32_t* weights, int64_t n_taps,
                                                             const uint8_t* rows, int64_t stride, int64_t n,
                                                             uint8_t* out) {
  int64_t at = 0;
  for (; at + 32 <= n; at += 32) {
    Int8x32 sums[4];
    for (Int8x32& sum : sums) sum = Int8x32{} + kHalf;
    for (int64_t k = 0; k < n_taps; ++k) {
      const uint8_t* from = rows + k * stride + at;
      for (int part = 0; part < 4; ++part) {
        Int8x32 pixels;
        LOAD_BYTES(pixels, from + 8 * part);
        sums[part] += pixels * weights[k];
      }
    }
    int32_t lanes[32];
    std::memcpy(lanes, sums, sizeof(lanes));
    for (int i = 0; i < 32; ++i) out[at + i] = to_byte(lanes[i]);
  }
  for (; at < n; ++at) {
    int32_t sum = kHalf;
    for (int64_t k = 0; k < n_taps; ++k) sum += rows[k * stride + at] * weights[k];
    out[at] = to_byte(sum);
  }
}

#undef LOAD_BYTES

#if defined(__x86_64__)
__attribute__((target("avx2"))) void resample_row_avx2(const HorizontalPass& pass, const uint8_t* row, uint8_t* out) {
  resample_row_body(pass, row, out);
}
__attribute__((target("avx2"))) void combine_rows_avx2(const int32_t* weights, int64_t n_taps, const uint8_t* rows,
                                                       int64_t stride, int64_t n, uint8_t* out) {
  combine_rows_body(weights, n_taps, rows, stride, n, out);
}
bool has_avx2() {
  static const bool has = __builtin_cpu_supports("avx2") != 0;
  return has;
}
#endif

}  // namespace

void resample_row(const HorizontalPass& pass, const uint8_t* row, uint8_t* out) {
#if defined(__x86_64__)
  if (has_avx2()) return resample_row_avx2(pass, row, out);
#endif
  resample_row_body(pass, row, out);
}

void combine_rows(const int32_t* weights, int64_t n_taps, const uint8_t* rows, int64_t stride, int64_t n,
                  uint8_t* out) {
#if defined(__x86_64__)
  if (has_avx2()) return combine_rows_avx2(weights, n_taps, rows, stride, n, out);
#endif
  combine_rows_body(weights, n_taps, rows, stride, n, out);
}

}  // namespace vlcache
