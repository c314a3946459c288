// Detects which instruction sets the kernels of ops/cpu may use: those of the CPU, capped by the caller.
#pragma once

#include <array>
#include <string_view>

#include "ops/isa.h"

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

// What a machine has: a level, and whether it multiplies bytes, which CPUs of either level may do or not.
struct InstructionSet {
  std::string_view name;  // as --max-isa has it
  Isa isa;
  bool byte_dots;
};
inline constexpr std::array kInstructionSets{
    InstructionSet{"amx_bf16", Isa::kAmxBf16, true},   InstructionSet{"avx512_bf16", Isa::kAvx512Bf16, true},
    InstructionSet{"avx512_vnni", Isa::kAvx512, true}, InstructionSet{"avx512", Isa::kAvx512, false},
    InstructionSet{"avx_vnni", Isa::kAvx2, true},      InstructionSet{"avx2", Isa::kAvx2, false},
    InstructionSet{"scalar", Isa::kScalar, false}};  // fastest first

// From now on this machine counts as one that has no more than `most`: for tests, before anything else of this file is
// called.
void limit_machine(const InstructionSet& most);

}  // namespace vlcache::cpu
