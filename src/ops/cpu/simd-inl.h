// Loads and stores vectors of f32 from and to rows of f32 or bf16, compiled once per Highway target.
#if defined(VLCACHE_OPS_CPU_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef VLCACHE_OPS_CPU_SIMD_INL_H_
#undef VLCACHE_OPS_CPU_SIMD_INL_H_
#else
#define VLCACHE_OPS_CPU_SIMD_INL_H_
#endif

#include <hwy/highway.h>

#include <cstring>

#include "base/dtype.h"

HWY_BEFORE_NAMESPACE();
namespace vlcache::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using F32Tag = hn::CappedTag<float, 16>;
using F32Vec = hn::Vec<F32Tag>;

HWY_INLINE size_t f32_lanes() { return hn::Lanes(F32Tag()); }

HWY_INLINE F32Vec load_f32(const float* p) { return hn::LoadU(F32Tag(), p); }
HWY_INLINE F32Vec load_f32(const bf16* p) {
  const F32Tag d;
  const hn::RebindToUnsigned<F32Tag> du;
  const hn::Rebind<uint16_t, F32Tag> du16;
  const auto bits = hn::PromoteTo(du, hn::LoadU(du16, reinterpret_cast<const uint16_t*>(p)));
  return hn::BitCast(d, hn::ShiftLeft<16>(bits));
}

// The bits of v rounded to bf16 (nearest even, NaN stays NaN), in the low half of each lane: base/dtype.h's to_bf16.
HWY_INLINE hn::Vec<hn::RebindToSigned<F32Tag>> bf16_bits(F32Vec v) {
  const F32Tag d;
  const hn::RebindToUnsigned<F32Tag> du;
  const hn::RebindToSigned<F32Tag> di;
  const auto bits = hn::BitCast(du, v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
  const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7fffu))));
  const auto quiet = hn::Or(hn::ShiftRight<16>(bits), hn::Set(du, 0x40u));
  const auto is_nan = hn::RebindMask(du, hn::IsNaN(v));
  (void)d;
  return hn::BitCast(di, hn::IfThenElse(is_nan, quiet, rounded));
}

// v as it would read back from bf16 memory.
HWY_INLINE F32Vec round_to_bf16(F32Vec v) { return hn::BitCast(F32Tag(), hn::ShiftLeft<16>(bf16_bits(v))); }

HWY_INLINE void store_f32(F32Vec v, float* p) { hn::StoreU(v, F32Tag(), p); }
HWY_INLINE void store_f32(F32Vec v, bf16* p) {
  const hn::Rebind<uint16_t, F32Tag> du16;
  hn::StoreU(hn::DemoteTo(du16, bf16_bits(v)), du16, reinterpret_cast<uint16_t*>(p));
}

// The same for the first n <= lanes elements; the other lanes read as zero and are not written.
template <typename T>
HWY_INLINE F32Vec load_f32(const T* p, size_t n) {
  if (HWY_LIKELY(n >= f32_lanes())) return load_f32(p);
  HWY_ALIGN T part[16] = {};
  std::memcpy(part, p, n * sizeof(T));
  return load_f32(part);
}
template <typename T>
HWY_INLINE void store_f32(F32Vec v, T* p, size_t n) {
  if (HWY_LIKELY(n >= f32_lanes())) {
    store_f32(v, p);
    return;
  }
  HWY_ALIGN T part[16];
  store_f32(v, part);
  std::memcpy(p, part, n * sizeof(T));
}

}  // namespace vlcache::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // VLCACHE_OPS_CPU_SIMD_INL_H_
