// Wraps the registers of AMX: eight tiles of up to 16 rows of 64 bytes. For files compiled with AMX.
#pragma once

#include <immintrin.h>

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

// The shape of the calling thread's tiles. Other code that loads one must call forget_tiles (panel_kernel.h).
inline thread_local AmxShape tiles_now{.palette = 0};

// Gives the calling thread tiles of this shape. Loading a shape costs as much as twenty products, so the current shape
// is not loaded again.
inline void use_tiles(const AmxShape& shape) {
  if (std::memcmp(&tiles_now, &shape, sizeof(shape)) == 0) return;
  tiles_now = shape;
  read_by_tiles(&tiles_now);
  _tile_loadconfig(&tiles_now);
}

}  // namespace vlcache::cpu
