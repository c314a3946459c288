// Dispatches Highway kernels at run time on the caller's Isa instead of Highway's process-wide choice. Use in a file
// like this:
//
//   #undef HWY_TARGET_INCLUDE
//   #define HWY_TARGET_INCLUDE "ops/cpu/op.cc"
//   #include <hwy/foreach_target.h>  // compiles the file once per target
//   #include <hwy/highway.h>
//   HWY_BEFORE_NAMESPACE();
//   namespace vlcache::cpu::HWY_NAMESPACE { void kernel(...) {...} }
//   HWY_AFTER_NAMESPACE();
//   #if HWY_ONCE
//   namespace vlcache::cpu { HWY_EXPORT(kernel); void op(Isa isa, ...) { VLCACHE_SIMD(isa, kernel)(...); } }
//   #endif
//
// Targets are those of CMakeLists.txt: SCALAR, AVX2, AVX3 (AVX-512) on x86.
#pragma once

#include <hwy/targets.h>  // not highway.h, which must come after foreach_target.h

#include "ops/cpu/cpu_features.h"

namespace vlcache::cpu {

// Index into a table made by HWY_EXPORT.
inline size_t simd_index([[maybe_unused]] Isa isa) {
#if (HWY_TARGETS & (HWY_TARGETS - 1)) == 0
  return 0;  // one target, one entry
#else
#if HWY_ARCH_X86
  int64_t targets = 0;
  if (isa >= Isa::kAvx2) targets |= HWY_AVX2;
  if (isa >= Isa::kAvx512) targets |= HWY_AVX3;
#else
  const int64_t targets = isa == Isa::kScalar ? 0 : hwy::SupportedTargets();
#endif
  const int64_t mask =
      (HWY_CHOSEN_TARGET_SHIFT(targets) | HWY_CHOSEN_TARGET_MASK_SCALAR) & HWY_CHOSEN_TARGET_MASK_TARGETS;
  return hwy::Num0BitsBelowLS1Bit_Nonzero64(static_cast<uint64_t>(mask));
#endif
}

}  // namespace vlcache::cpu

#define VLCACHE_SIMD(isa, FUNC) (*HWY_DISPATCH_TABLE(FUNC)[::vlcache::cpu::simd_index(isa)])
