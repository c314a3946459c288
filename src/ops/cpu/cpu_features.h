// Detects which instruction sets the kernels of ops/cpu may use: those of the CPU, capped by the caller.
#pragma once

#include <cstdint>
#include <string_view>

namespace vlcache::cpu {

// Ordered: each level includes those before it. On other CPUs than x86 everything that Highway supports counts as
// kAvx2.
enum class Isa : uint8_t {
  kScalar,      // Highway's scalar target: plain loops
  kAvx2,        // AVX2, FMA, F16C
  kAvx512,      // AVX-512 F, BW, DQ, VL
  kAvx512Bf16,  // and the bf16 dot product
  kAmxBf16,     // and products of bf16 tiles
};

// The best level of this CPU (asked once), at most `cap`. Kernels take the result as a parameter; nothing here is a
// global switch.
Isa detect_isa(Isa cap = Isa::kAmxBf16);

// The level whose kernels are the fastest here, at most `cap`: detect_isa(cap), but kAvx512 instead of kAvx512Bf16
// where the dot product does fewer operations than multiply-adds of f32 (limits.h).
Isa fastest_isa(Isa cap = Isa::kAmxBf16);

std::string_view isa_name(Isa isa);  // "scalar", "avx2", "avx512", "avx512_bf16", "amx_bf16"

}  // namespace vlcache::cpu
