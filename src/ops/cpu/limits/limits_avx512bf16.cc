// The bf16 peak: independent chains of dot products that never touch memory.
#include <immintrin.h>

#include "ops/cpu/limits/limits_kernels.h"

namespace vlcache::cpu {

float bf16_dot_loop(int64_t n) {
  constexpr int kChains = 16;  // two units x a latency of at most eight cycles
  __m512 acc[kChains];
#pragma GCC unroll 16  // here and below: all of acc in registers
  for (int c = 0; c < kChains; ++c) acc[c] = _mm512_setzero_ps();
  const __m512bh x = _mm512_cvtne2ps_pbh(_mm512_setzero_ps(), _mm512_setzero_ps());
  for (int64_t i = 0; i < n; i += kChains) {
#pragma GCC unroll 16
    for (int c = 0; c < kChains; ++c) {
      acc[c] = _mm512_dpbf16_ps(acc[c], x, x);
      asm volatile("" : "+v"(acc[c]));  // keeps equal chains from becoming one
    }
  }
  __m512 sum = _mm512_setzero_ps();
#pragma GCC unroll 16
  for (int c = 0; c < kChains; ++c) sum = _mm512_add_ps(sum, acc[c]);
  return _mm512_cvtss_f32(sum);
}

}  // namespace vlcache::cpu
