// Codes of a page as f32 values, for CPUs that multiply neither bytes nor bf16 fast: Highway, compiled per target.
#include <algorithm>
#include <cmath>

#include "ops/cpu/attention/kernels.h"
#include "ops/cpu/simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/attention/kernels_code_values.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "ops/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace vlcache::cpu::HWY_NAMESPACE {
namespace {

using D = F32Tag;
using V = F32Vec;
using DU = hn::RebindToUnsigned<D>;
using DI = hn::RebindToSigned<D>;
constexpr int kN = static_cast<int>(HWY_MIN(HWY_LANES(float), kLanes));

HWY_INLINE hn::Vec<DU> lanes_at(const std::byte* p) { return hn::LoadU(DU(), reinterpret_cast<const uint32_t*>(p)); }

// The codes of each word times their scales, to lines `stride` apart. Of eight codes of four bits, four lie in the low
// halves of the bytes, the others in the high ones.
template <int kBits, int kCode = 0>
HWY_INLINE void put_values(hn::Vec<DU> words, const V (&scale)[32 / kBits], float* y, int64_t stride) {
  constexpr int kFirst = 8 * (kCode % 4) + 4 * (kCode / 4), kAbove = 32 - kBits - kFirst;
  const auto code = hn::ShiftRight<32 - kBits>(hn::BitCast(DI(), hn::ShiftLeft<kAbove>(words)));
  store_f32(hn::Mul(hn::ConvertTo(D(), code), scale[kCode]), y + kCode * stride);
  if constexpr (kCode + 1 < 32 / kBits) put_values<kBits, kCode + 1>(words, scale, y, stride);
}

// The scales of each group of values, of 64 slots, after codes of `width` values of each slot.
template <int kBits>
const bf16* scales_of(const std::byte* half, int64_t width) {
  return reinterpret_cast<const bf16*>(half + kPageSlots * width * kBits / 8);
}
template <int kBits>
constexpr int64_t group_of(int64_t width) {
  return kBits == 8 ? width : kInt4Group;
}

// [d / kCount, 64] words of kCount dimensions to [d, 64].
template <int kBits>
void k_values(const std::byte* k, int64_t d, std::byte* to) {
  constexpr int kCount = 32 / kBits;
  const bf16* scales = scales_of<kBits>(k, d);
  float* y = reinterpret_cast<float*>(to);
  for (int64_t c = 0; c < d; c += kCount, k += 4 * kPageSlots, y += kCount * kPageSlots) {
    for (int64_t j = 0; j < kPageSlots; j += kN) {
      const V x = load_f32(scales + c / group_of<kBits>(d) * kPageSlots + j);
      V scale[kCount];
      for (V& same : scale) same = x;
      put_values<kBits>(lanes_at(k + 4 * j), scale, y + j, kPageSlots);
    }
  }
}

// [64 / kCount, dp] words of kCount slots to [64, dp].
template <int kBits>
uint64_t v_values(const std::byte* v, int64_t padded_dim, std::byte* to) {
  constexpr int kCount = 32 / kBits;
  const bf16* scales = scales_of<kBits>(v, padded_dim);
  float* y = reinterpret_cast<float*>(to);
  uint64_t not_finite = 0;
  for (int64_t column = 0; column < padded_dim; column += group_of<kBits>(padded_dim), scales += kPageSlots) {
    const int64_t end = std::min(column + group_of<kBits>(padded_dim), padded_dim);
    for (int64_t slot = 0; slot < kPageSlots; slot += kCount) {
      V scale[kCount];
      for (int64_t i = 0; i < kCount; ++i) {
        const float x = to_float(scales[slot + i]);
        if (!std::isfinite(x)) not_finite |= uint64_t{1} << (slot + i);
        scale[i] = hn::Set(D(), std::isfinite(x) ? x : 0.0f);
      }
      const std::byte* line = v + slot / kCount * 4 * padded_dim;
      for (int64_t c = column; c < end; c += kN) {
        put_values<kBits>(lanes_at(line + 4 * c), scale, y + slot * padded_dim + c, padded_dim);
      }
    }
  }
  return not_finite;
}

void fill(CodeValues* values) {
  constexpr size_t kInt8 = static_cast<size_t>(KvCodec::kInt8), kInt4 = static_cast<size_t>(KvCodec::kInt4);
  *values = {.codec = KvCodec::kF32, .many_rows = {}, .int8_scaled = true, .k = {}, .v = {}};
  values->k[kInt8] = k_values<8>;
  values->v[kInt8] = v_values<8>;
  values->k[kInt4] = k_values<4>;
  values->v[kInt4] = v_values<4>;
}

}  // namespace
}  // namespace vlcache::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace vlcache::cpu {
HWY_EXPORT(fill);

void use_code_values(AttentionKernels& kernels, Isa isa) {
  CodeValues& values = kernels.code_values;
  VLCACHE_SIMD(isa, fill)(&values);
  // 512 rows of 2048 slots (head sizes 64 and 128, 3 or 8 query heads of one) take about the time of bf16 pages. Codes
  // take 1.35 to 1.5 of it in int4, 1.2 to 1.3 in k8v4, with AVX-512 1.15 to 1.2 in int8; but with AVX2, whose
  // products of words make two of f32's, 0.85 to 0.97 in int8.
  for (int codec = 0; codec < kKvCodecs; ++codec) values.many_rows[codec] = is_coded(static_cast<KvCodec>(codec));
  values.many_rows[static_cast<size_t>(KvCodec::kInt8)] = isa != Isa::kAvx2;
}

}  // namespace vlcache::cpu
#endif  // HWY_ONCE
