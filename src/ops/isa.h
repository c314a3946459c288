// Isa: the levels of instruction sets that have kernels of their own.
#pragma once

#include <cstdint>

namespace vlcache {

// Ordered: each level includes the earlier levels. On other CPUs than x86 everything that Highway supports counts as
// kAvx2.
enum class Isa : uint8_t {
  kScalar,      // plain loops
  kAvx2,        // AVX2, FMA, F16C
  kAvx512,      // AVX-512 F, BW, DQ, VL
  kAvx512Bf16,  // and the bf16 dot product
  kAmxBf16,     // and products of bf16 tiles
};

}  // namespace vlcache
