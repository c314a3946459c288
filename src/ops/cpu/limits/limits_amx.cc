// The bf16 peak of AMX: four chains of products of tiles that never touch memory.
#include "ops/cpu/amx.h"
#include "ops/cpu/limits/limits_kernels.h"

namespace vlcache::cpu {

float amx_loop(int64_t n) {
  alignas(64) float sums[16 * 16];
  AmxShape shape;
  for (int tile = 0; tile < 8; ++tile) shape.set(tile, 16);
  use_tiles(shape);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_zero(4);
  _tile_zero(5);
  _tile_zero(6);
  _tile_zero(7);
  for (int64_t i = 0; i < n; i += 4) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, sums, 64);
  return sums[0];
}

}  // namespace vlcache::cpu
