// Inner loops of the resampler: plain, and with AVX2 where the processor has it. Sums are integers, so every order of
// summation gives the same result.
#include "io/image/resize_kernels.h"

#include <algorithm>

#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace vlcache {
namespace {

constexpr int32_t kHalf = 1 << (kWeightBits - 1);

uint8_t to_byte(int32_t sum) { return static_cast<uint8_t>(std::clamp(sum >> kWeightBits, 0, 255)); }

void resample_row_plain(const HorizontalPass& pass, const uint8_t* row, uint8_t* out) {
  const int64_t n = pass.n_taps * 3;
  for (int64_t x = 0; x < pass.width; ++x) {
    const uint8_t* from = row + 3 * int64_t{pass.first[x]};
    const int32_t* weights = pass.weights + x * n;
    int32_t sums[24] = {};
    for (int64_t i = 0; i < n; i += 24) {
      for (int64_t k = 0; k < 24; ++k) sums[k] += from[i + k] * weights[i + k];
    }
    for (int64_t c = 0; c < 3; ++c) {
      int32_t sum = kHalf;
      for (int64_t k = c; k < 24; k += 3) sum += sums[k];
      out[3 * x + c] = to_byte(sum);
    }
  }
}

void combine_rows_plain(const RowBlend& blend, int64_t begin, int64_t end, uint8_t* out) {
  for (int64_t at = begin; at < end; ++at) {
    int32_t sum = kHalf;
    for (int64_t k = 0; k < blend.n_taps; ++k) sum += blend.rows[k * blend.stride + at] * blend.weights[k];
    out[at] = to_byte(sum);
  }
}

#ifdef __x86_64__
#define VLCACHE_AVX2 __attribute__((target("avx2")))

VLCACHE_AVX2 inline __m256i times(const uint8_t* pixels, __m256i weights) {
  return _mm256_mullo_epi32(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(pixels))), weights);
}

VLCACHE_AVX2 void resample_row_avx2(const HorizontalPass& pass, const uint8_t* row, uint8_t* out) {
  const int64_t n = pass.n_taps * 3;
  alignas(32) int32_t lanes[25] = {};  // one more than used: the last load below is wider than three
  for (int64_t x = 0; x < pass.width; ++x) {
    const uint8_t* from = row + 3 * int64_t{pass.first[x]};
    const auto* weights = reinterpret_cast<const __m256i*>(pass.weights + x * n);
    __m256i sums[3] = {_mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256()};
    for (int64_t i = 0; i < n; i += 24, weights += 3) {
      for (int part = 0; part < 3; ++part) {
        sums[part] = _mm256_add_epi32(sums[part], times(from + i + 8 * part, _mm256_loadu_si256(weights + part)));
      }
    }
    for (int part = 0; part < 3; ++part) _mm256_store_si256(reinterpret_cast<__m256i*>(lanes) + part, sums[part]);
    __m128i rgb = _mm_set1_epi32(kHalf);  // lanes 0, 1, 2 are the channels
    for (int i = 0; i < 24; i += 3)
      rgb = _mm_add_epi32(rgb, _mm_loadu_si128(reinterpret_cast<const __m128i*>(lanes + i)));
    rgb = _mm_srai_epi32(rgb, kWeightBits);
    const int bytes = _mm_cvtsi128_si32(_mm_packus_epi16(_mm_packs_epi32(rgb, rgb), rgb));
    out[3 * x] = static_cast<uint8_t>(bytes);
    out[3 * x + 1] = static_cast<uint8_t>(bytes >> 8);
    out[3 * x + 2] = static_cast<uint8_t>(bytes >> 16);
  }
}

VLCACHE_AVX2 void combine_rows_avx2(const RowBlend& blend, int64_t n, uint8_t* out) {
  int64_t at = 0;
  for (; at + 32 <= n; at += 32) {
    __m256i sums[4];
    for (__m256i& sum : sums) sum = _mm256_set1_epi32(kHalf);
    for (int64_t k = 0; k < blend.n_taps; ++k) {
      const __m256i weight = _mm256_set1_epi32(blend.weights[k]);
      const uint8_t* from = blend.rows + k * blend.stride + at;
      for (int part = 0; part < 4; ++part) sums[part] = _mm256_add_epi32(sums[part], times(from + 8 * part, weight));
    }
    for (__m256i& sum : sums) sum = _mm256_srai_epi32(sum, kWeightBits);
    // Packing works within 128-bit halves; the permutation puts the groups of four bytes back in order.
    const __m256i packed =
        _mm256_packus_epi16(_mm256_packs_epi32(sums[0], sums[1]), _mm256_packs_epi32(sums[2], sums[3]));
    const __m256i ordered = _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + at), ordered);
  }
  combine_rows_plain(blend, at, n, out);
}

bool has_avx2() {
  static const bool has = __builtin_cpu_supports("avx2") != 0;
  return has;
}
#endif

}  // namespace

void resample_row(const HorizontalPass& pass, const uint8_t* row, uint8_t* out) {
#ifdef __x86_64__
  if (has_avx2()) return resample_row_avx2(pass, row, out);
#endif
  resample_row_plain(pass, row, out);
}

void combine_rows(const RowBlend& blend, int64_t n, uint8_t* out) {
#ifdef __x86_64__
  if (has_avx2()) return combine_rows_avx2(blend, n, out);
#endif
  combine_rows_plain(blend, 0, n, out);
}

void resample_row_portable(const HorizontalPass& pass, const uint8_t* row, uint8_t* out) {
  resample_row_plain(pass, row, out);
}
void combine_rows_portable(const RowBlend& blend, int64_t n, uint8_t* out) { combine_rows_plain(blend, 0, n, out); }

}  // namespace vlcache
