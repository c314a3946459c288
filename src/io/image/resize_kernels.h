// Declares the inner loops of the resampler; used inside io/image only.
#pragma once

#include <cstdint>

namespace vlcache {

// Fixed point of the weights: 8 bits for the pixel, 2 for the overshoot of bicubic and Lanczos.
inline constexpr int kWeightBits = 32 - 8 - 2;
// Pixels a horizontal step computes together: 24 bytes are three vectors of eight, each starting at the same channel
// every time.
inline constexpr int64_t kTapBlock = 8;

struct HorizontalPass {
  const int32_t* first;    // [width] first source pixel of each output pixel
  const int32_t* weights;  // [width, n_taps * 3]: every weight three times, zero-padded
  int64_t n_taps;          // multiple of kTapBlock
  int64_t width;           // output pixels
};

// out[3 * width] from one source row, which must be readable for n_taps pixels from every first[].
void resample_row(const HorizontalPass& pass, const uint8_t* row, uint8_t* out);

struct RowBlend {
  const int32_t* weights;  // [n_taps]
  int64_t n_taps;
  const uint8_t* rows;  // the first of n_taps rows
  int64_t stride;       // bytes between them
};

// out[n] = the weighted sum of the first n bytes of the rows.
void combine_rows(const RowBlend& blend, int64_t n, uint8_t* out);

// The loop that other processors run; for tests.
void resample_row_portable(const HorizontalPass& pass, const uint8_t* row, uint8_t* out);
void combine_rows_portable(const RowBlend& blend, int64_t n, uint8_t* out);

}  // namespace vlcache
