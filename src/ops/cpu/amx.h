// Wraps the registers of AMX: eight tiles of up to 16 rows of 64 bytes. For files compiled with AMX.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace vlcache::cpu {

// The shape of a thread's tiles, as LDTILECFG reads it.
struct alignas(64) AmxShape {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  constexpr void set(int tile, int64_t n_rows, int64_t bytes = 64) {
    rows[tile] = static_cast<uint8_t>(n_rows);
    row_bytes[tile] = static_cast<uint16_t>(bytes);
  }
};

// GCC's intrinsics do not declare which memory they read: this makes earlier stores to p's object visible to them.
inline void read_by_tiles(const void* p) { asm volatile("" : : "r"(p) : "memory"); }

// The shape of the calling thread's tiles, which no other code loads.
inline thread_local AmxShape tiles_now{.palette = 0};

// Gives the calling thread tiles of this shape. Loading a shape costs as much as twenty products, so the current shape
// is not loaded again.
inline void use_tiles(const AmxShape& shape) {
  if (std::memcmp(&tiles_now, &shape, sizeof(shape)) == 0) return;
  tiles_now = shape;
  read_by_tiles(&tiles_now);
  _tile_loadconfig(&tiles_now);
}

// Sums are tiles 0 to 3, of 16 f32 a row: a strip, side by side, or a block, where tile 1 lies below tile 0 and tiles 2
// and 3 beside those. (Intrinsics take a tile's number as it is written: no loop can count it.)
inline void zero_sums() {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
}

// stride: bytes between rows, here and below.
template <int kTiles>
inline void load_strip(const float* from, int64_t stride) {
  _tile_loadd(0, from, stride);
  if constexpr (kTiles > 1) _tile_loadd(1, from + 16, stride);
  if constexpr (kTiles > 2) _tile_loadd(2, from + 32, stride);
  if constexpr (kTiles > 3) _tile_loadd(3, from + 48, stride);
}

template <int kTiles>
inline void store_strip(float* to, int64_t stride) {
  _tile_stored(0, to, stride);
  if constexpr (kTiles > 1) _tile_stored(1, to + 16, stride);
  if constexpr (kTiles > 2) _tile_stored(2, to + 32, stride);
  if constexpr (kTiles > 3) _tile_stored(3, to + 48, stride);
}

template <int kRows, int kColumns>
inline void load_block(const float* from, int64_t stride) {
  const float* below = from + 4 * stride;
  _tile_loadd(0, from, stride);
  if constexpr (kRows > 1) _tile_loadd(1, below, stride);
  if constexpr (kColumns > 1) _tile_loadd(2, from + 16, stride);
  if constexpr (kRows > 1 && kColumns > 1) _tile_loadd(3, below + 16, stride);
}

template <int kRows, int kColumns>
inline void store_block(float* to, int64_t stride) {
  float* below = to + 4 * stride;
  _tile_stored(0, to, stride);
  if constexpr (kRows > 1) _tile_stored(1, below, stride);
  if constexpr (kColumns > 1) _tile_stored(2, to + 16, stride);
  if constexpr (kRows > 1 && kColumns > 1) _tile_stored(3, below + 16, stride);
}

// block += left right: kRows tiles of `left`, one below the other at left_step bytes, and kColumns of `right`, side by
// side. Tiles 4 to 7.
template <int kRows, int kColumns>
inline void multiply_block(const std::byte* left, int64_t left_step, int64_t left_stride, const std::byte* right,
                           int64_t right_stride) {
  _tile_loadd(4, left, left_stride);
  if constexpr (kRows > 1) _tile_loadd(5, left + left_step, left_stride);
  _tile_loadd(6, right, right_stride);
  _tile_dpbf16ps(0, 4, 6);
  if constexpr (kRows > 1) _tile_dpbf16ps(1, 5, 6);
  if constexpr (kColumns > 1) {
    _tile_loadd(7, right + 64, right_stride);
    _tile_dpbf16ps(2, 4, 7);
    if constexpr (kRows > 1) _tile_dpbf16ps(3, 5, 7);
  }
}

}  // namespace vlcache::cpu
