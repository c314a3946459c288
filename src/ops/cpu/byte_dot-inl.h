// Multiplies bytes (VNNI, or AVX2 alone), compiled once per Highway target.
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

// Additions to sums of pairs are in assembler with AVX2, because GCC would make all products of a sum before it adds
// them, and keep them in memory.
using PairTag = hn::Repartition<int16_t, F32Tag>;
using PairVec = hn::Vec<PairTag>;
// sum + the products of each lane's two signed words.
HWY_INLINE I32Vec add_word_pairs(I32Vec sum, U32Vec w, U32Vec x) {
#if HWY_TARGET == HWY_AVX2
  asm("vpaddd %1, %0, %0" : "+x"(sum.raw) : "x"(_mm256_madd_epi16(w.raw, x.raw)));
  return sum;
#else
  I32Vec rest = hn::Zero(I32Tag());  // not used on x86, where lanes stay in their order
  return hn::ReorderWidenMulAccumulate(I32Tag(), hn::BitCast(PairTag(), w), hn::BitCast(PairTag(), x), sum, rest);
#endif
}
#endif

#undef VLCACHE_PAIR_DOTS
#if HWY_TARGET == HWY_AVX2
#define VLCACHE_PAIR_DOTS 1
// Without VNNI: the sums of two products of each lane's bytes, of w without a sign and signed ones of x; w of 0 to 128,
// so that no sum exceeds 16 bits.
HWY_INLINE PairVec byte_pairs(U32Vec w, U32Vec x) { return PairVec{_mm256_maddubs_epi16(w.raw, x.raw)}; }
HWY_INLINE PairVec add_byte_pairs(PairVec sum, U32Vec w, U32Vec x) {
  asm("vpaddw %1, %0, %0" : "+x"(sum.raw) : "x"(byte_pairs(w, x).raw));
  return sum;
}
// sum + factor times both sums of each lane.
HWY_INLINE I32Vec add_pairs(I32Vec sum, PairVec pairs, int16_t factor) {
  return add_word_pairs(sum, hn::BitCast(U32Tag(), pairs), hn::BitCast(U32Tag(), hn::Set(PairTag(), factor)));
}
#endif

}  // namespace vlcache::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // VLCACHE_OPS_CPU_BYTE_DOT_INL_H_
