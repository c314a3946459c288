// Declares the inner loops of measure_limits.
#pragma once

#include <cstdint>

namespace vlcache::cpu {

// n bf16 dot products of 16 x 2 on registers; requires Isa::kAvx512Bf16. Returns a value that depends on all of them.
float bf16_dot_loop(int64_t n);
// n products of tiles, 16 x 32 with 32 x 16; requires Isa::kAmxBf16. Returns one of their sums.
float amx_loop(int64_t n);

}  // namespace vlcache::cpu
