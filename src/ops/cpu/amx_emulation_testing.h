// Tiles of AMX in memory, for testing its kernels on CPUs without them: included before a file that uses the
// intrinsics, whose names stand for these functions after it. Ends the process where the instructions would fault.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "base/error.h"

namespace vlcache::cpu::emulated_amx {

struct Tile {
  int64_t n_rows = 0, row_bytes = 0;
  uint8_t rows[16][64] = {};

  template <typename T>
  T at(int64_t row, int64_t i) const {
    T value;
    std::memcpy(&value, rows[row] + i * int64_t{sizeof(T)}, sizeof(T));
    return value;
  }
};
inline thread_local Tile tiles[8];

inline void load_config(const void* shape) {
  const auto* bytes = static_cast<const uint8_t*>(shape);
  for (int i = 0; i < 8; ++i) {
    uint16_t row_bytes;
    std::memcpy(&row_bytes, bytes + 16 + 2 * i, sizeof(row_bytes));
    tiles[i] = {.n_rows = bytes[48 + i], .row_bytes = row_bytes};
    CHECK(bytes[0] == 1 && tiles[i].n_rows <= 16 && row_bytes <= 64);
  }
}

inline Tile& configured(int tile) {
  CHECK(tiles[tile].n_rows > 0 && tiles[tile].row_bytes > 0);
  return tiles[tile];
}

inline void load(int tile, const void* from, int64_t stride) {
  Tile& t = configured(tile);
  std::memset(t.rows, 0, sizeof(t.rows));
  for (int64_t row = 0; row < t.n_rows; ++row) {
    std::memcpy(t.rows[row], static_cast<const uint8_t*>(from) + row * stride, static_cast<size_t>(t.row_bytes));
  }
}

inline void store(int tile, void* to, int64_t stride) {
  const Tile& t = configured(tile);
  for (int64_t row = 0; row < t.n_rows; ++row) {
    std::memcpy(static_cast<uint8_t*>(to) + row * stride, t.rows[row], static_cast<size_t>(t.row_bytes));
  }
}

inline void zero(int tile) { std::memset(configured(tile).rows, 0, sizeof(Tile::rows)); }

inline float widened(uint16_t bf16) {
  const uint32_t bits = uint32_t{bf16} << 16;
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// sums += a b, whose pairs of values are rows of b.
inline void multiply_bf16(int sums, int a, int b) {
  Tile& c = configured(sums);
  const Tile &x = configured(a), &w = configured(b);
  CHECK(c.n_rows == x.n_rows && x.row_bytes == 4 * w.n_rows && c.row_bytes == w.row_bytes);
  for (int64_t row = 0; row < c.n_rows; ++row) {
    for (int64_t i = 0; i < c.row_bytes / 4; ++i) {
      float sum = c.at<float>(row, i);
      for (int64_t pair = 0; pair < w.n_rows; ++pair) {
        for (int64_t k = 0; k < 2; ++k) {
          sum += widened(x.at<uint16_t>(row, 2 * pair + k)) * widened(w.at<uint16_t>(pair, 2 * i + k));
        }
      }
      std::memcpy(c.rows[row] + 4 * i, &sum, sizeof(sum));
    }
  }
}

// sums += a b of signed bytes, whose fours are rows of b.
inline void multiply_bytes(int sums, int a, int b) {
  Tile& c = configured(sums);
  const Tile &x = configured(a), &w = configured(b);
  CHECK(c.n_rows == x.n_rows && x.row_bytes == 4 * w.n_rows && c.row_bytes == w.row_bytes);
  for (int64_t row = 0; row < c.n_rows; ++row) {
    for (int64_t i = 0; i < c.row_bytes / 4; ++i) {
      auto sum = c.at<int32_t>(row, i);
      for (int64_t k = 0; k < x.row_bytes; ++k) sum += x.at<int8_t>(row, k) * w.at<int8_t>(k / 4, 4 * i + k % 4);
      std::memcpy(c.rows[row] + 4 * i, &sum, sizeof(sum));
    }
  }
}

}  // namespace vlcache::cpu::emulated_amx

#undef _tile_loadconfig
#undef _tile_loadd
#undef _tile_stream_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbf16ps
#undef _tile_dpbssd
#define _tile_loadconfig vlcache::cpu::emulated_amx::load_config
#define _tile_loadd vlcache::cpu::emulated_amx::load
#define _tile_stream_loadd vlcache::cpu::emulated_amx::load
#define _tile_stored vlcache::cpu::emulated_amx::store
#define _tile_zero vlcache::cpu::emulated_amx::zero
#define _tile_dpbf16ps vlcache::cpu::emulated_amx::multiply_bf16
#define _tile_dpbssd vlcache::cpu::emulated_amx::multiply_bytes
