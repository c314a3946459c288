// Detects which instruction sets the kernels of ops/cpu may use: those of the CPU, capped by the caller.
#pragma once

#include <string_view>

#include "base/isa.h"

namespace vlcache::cpu {

using vlcache::Isa;

// The best level of this CPU (asked once), at most `cap`. Kernels take the result as a parameter; nothing here is a
// global switch.
Isa detect_isa(Isa cap = Isa::kAmxBf16);

// The level whose kernels are the fastest here, at most `cap`: detect_isa(cap), but kAvx512 instead of kAvx512Bf16
// where the dot product does fewer operations than multiply-adds of f32 (limits.h).
Isa fastest_isa(Isa cap = Isa::kAmxBf16);

// Whether the CPU multiplies bytes (VNNI), in vectors of the level: AVX512_VNNI from kAvx512 on, AVX-VNNI on kAvx2.
bool has_byte_dots(Isa isa);

std::string_view isa_name(Isa isa);  // "scalar", "avx2", "avx512", "avx512_bf16", "amx_bf16"

}  // namespace vlcache::cpu
