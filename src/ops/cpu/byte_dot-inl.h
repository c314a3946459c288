// Multiplies bytes (VNNI), compiled once per Highway target.
#if defined(VLCACHE_OPS_CPU_BYTE_DOT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef VLCACHE_OPS_CPU_BYTE_DOT_INL_H_
#undef VLCACHE_OPS_CPU_BYTE_DOT_INL_H_
#else
#define VLCACHE_OPS_CPU_BYTE_DOT_INL_H_
#endif

#include <hwy/highway.h>

#include "ops/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace vlcache::cpu::HWY_NAMESPACE {

using I32Tag = hn::RebindToSigned<F32Tag>;
using I32Vec = hn::Vec<I32Tag>;
using U32Tag = hn::RebindToUnsigned<F32Tag>;
using U32Vec = hn::Vec<U32Tag>;

#undef VLCACHE_BYTE_DOTS
#if HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR
#define VLCACHE_BYTE_DOTS 1
// sum + the four products of each lane: bytes of w without a sign, signed bytes of x. Highway 1.0.3 has neither a word
// for VNNI nor a target with it.
HWY_INLINE I32Vec byte_dot(I32Vec sum, U32Vec w, U32Vec x) {
#if HWY_TARGET == HWY_AVX2
  asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum.raw) : "x"(w.raw), "x"(x.raw));
#else
  asm("vpdpbusd %2, %1, %0" : "+v"(sum.raw) : "v"(w.raw), "v"(x.raw));
#endif
  return sum;
}
#endif

}  // namespace vlcache::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // VLCACHE_OPS_CPU_BYTE_DOT_INL_H_
