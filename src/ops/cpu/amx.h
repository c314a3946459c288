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

// Gives the calling thread tiles of this shape. Loading a shape costs as much as twenty products, so the current shape
// is not loaded again. No other code in this process may load one.
inline void use_tiles(const AmxShape& shape) {
  thread_local AmxShape current{.palette = 0};
  if (std::memcmp(&current, &shape, sizeof(shape)) == 0) return;
  current = shape;
  read_by_tiles(&current);
  _tile_loadconfig(&current);
}

}  // namespace vlcache::cpu
