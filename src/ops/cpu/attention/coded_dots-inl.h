// How four codes of each lane, bytes, meet four whole numbers of a row, the same for all lanes: ByteDots, by products
// of bytes, and WordDots, of words. Compiled once per Highway target.
#if defined(VLCACHE_OPS_CPU_ATTENTION_CODED_DOTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef VLCACHE_OPS_CPU_ATTENTION_CODED_DOTS_INL_H_
#undef VLCACHE_OPS_CPU_ATTENTION_CODED_DOTS_INL_H_
#else
#define VLCACHE_OPS_CPU_ATTENTION_CODED_DOTS_INL_H_
#endif

#include <hwy/highway.h>

#include <cstring>

#include "ops/cpu/attention/kernels.h"
#include "ops/cpu/byte_dot-inl.h"
#include "ops/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace vlcache::cpu::HWY_NAMESPACE {
namespace {

using D = F32Tag;
using V = F32Vec;
constexpr int kN = static_cast<int>(HWY_MIN(HWY_LANES(float), kLanes));
constexpr bool kManyRegisters = kN >= 16;

HWY_INLINE V load(const float* p) { return hn::LoadU(D(), p); }
HWY_INLINE void store(V v, float* p) { hn::StoreU(v, D(), p); }
HWY_INLINE V all(float x) { return hn::Set(D(), x); }
HWY_INLINE U32Vec lanes_at(const std::byte* p) { return hn::LoadU(U32Tag(), reinterpret_cast<const uint32_t*>(p)); }
HWY_INLINE U32Vec all_at(const std::byte* p) {
  uint32_t bits;
  std::memcpy(&bits, p, sizeof(bits));
  return hn::Set(U32Tag(), bits);
}

// Codes: of a vector of lanes; Row: of the row. kSums sums, of which total() makes one.
#if defined(VLCACHE_BYTE_DOTS)
struct ByteDots {
  static constexpr int kSums = 2;
  using Codes = U32Vec;
  struct Row {
    U32Vec high, low;
  };
  // Codes of K without a sign, for which CodedQuery::start makes up.
  static HWY_INLINE Codes k_codes(U32Vec bytes) { return hn::Xor(bytes, hn::Set(U32Tag(), 0x80808080u)); }
  static HWY_INLINE Codes v_codes(U32Vec bytes) { return bytes; }
  static HWY_INLINE Row row(const std::byte* codes, int64_t plane, int four) {
    return {all_at(codes + 4 * four), all_at(codes + plane + 4 * four)};
  }
  static HWY_INLINE void add_k(I32Vec (&sums)[kSums], Codes codes, const Row& row) {
    sums[0] = byte_dot(sums[0], codes, row.high);
    sums[1] = byte_dot(sums[1], codes, row.low);
  }
  static HWY_INLINE void add_v(I32Vec (&sums)[kSums], Codes codes, const Row& row) {
    sums[0] = byte_dot(sums[0], row.high, codes);
    sums[1] = byte_dot(sums[1], row.low, codes);
  }
  static HWY_INLINE I32Vec total(const I32Vec (&sums)[kSums]) { return hn::Add(hn::ShiftLeft<7>(sums[0]), sums[1]); }
  // Of numbers that fit an integer: Highway's NearestInt costs five instructions.
  static HWY_INLINE I32Vec nearest(V x) {
#if HWY_TARGET == HWY_AVX2
    return I32Vec{_mm256_cvtps_epi32(x.raw)};
#else
    return I32Vec{_mm512_cvtps_epi32(x.raw)};
#endif
  }
  // Words a, b, c, d, which fit bytes with a sign, as bytes in this order.
  static HWY_INLINE U32Vec bytes_of(I32Vec a, I32Vec b, I32Vec c, I32Vec d) {
    // Instructions pack within blocks of 128 bits: then fours of each vector are one vector's apart.
#if HWY_TARGET == HWY_AVX2
    const __m256i packed = _mm256_packs_epi16(_mm256_packs_epi32(a.raw, b.raw), _mm256_packs_epi32(c.raw, d.raw));
    return U32Vec{_mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7))};
#else
    const __m512i packed = _mm512_packs_epi16(_mm512_packs_epi32(a.raw, b.raw), _mm512_packs_epi32(c.raw, d.raw));
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    return U32Vec{_mm512_permutexvar_epi32(order, packed)};
#endif
  }
  // v = factor x [n], |v| <= kMostWeight, as its two halves, the low one from -kBelow on; up to the next multiple of
  // 64, they are 0.
  template <int kBelow>
  static HWY_INLINE void code(const float* x, int64_t n, float factor, std::byte* codes, int64_t plane) {
    const hn::Repartition<uint8_t, D> d8;
    const I32Vec low = hn::Set(I32Tag(), 127), below = hn::Set(I32Tag(), kBelow);
    for (int64_t j = 0; j < n; j += 4 * kN) {
      I32Vec v[4], high[4];
      for (int i = 0; i < 4; ++i) {
        const int64_t at = j + i * kN;
        v[i] = at < n ? nearest(hn::Mul(load(x + at), all(factor))) : hn::Zero(I32Tag());
        const I32Vec raised = hn::Add(v[i], below);
        high[i] = hn::ShiftRight<7>(raised);
        v[i] = hn::Sub(hn::And(raised, low), below);
      }
      hn::StoreU(hn::BitCast(d8, bytes_of(high[0], high[1], high[2], high[3])), d8,
                 reinterpret_cast<uint8_t*>(codes) + j);
      hn::StoreU(hn::BitCast(d8, bytes_of(v[0], v[1], v[2], v[3])), d8, reinterpret_cast<uint8_t*>(codes) + plane + j);
    }
  }
  // The sum of v [begin, end).
  static HWY_INLINE int32_t sum(const std::byte* codes, int64_t plane, int64_t begin, int64_t end) {
    const auto* high = reinterpret_cast<const int8_t*>(codes);
    int32_t sum = 0;
    for (int64_t i = begin; i < end; ++i) sum += 128 * high[i] + high[plane + i];
    return sum;
  }
  static constexpr bool kUnsignedK = true;
};
#endif

#if HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR
struct WordDots {
  static constexpr int kSums = 1;
  using D16 = hn::Repartition<int16_t, D>;
  using Words = hn::Vec<D16>;
  struct Codes {
    Words even, odd;
  };
  using Row = Codes;
  static HWY_INLINE Codes k_codes(U32Vec bytes) {
    const Words both = hn::BitCast(D16(), bytes);
    return {hn::ShiftRight<8>(hn::ShiftLeft<8>(both)), hn::ShiftRight<8>(both)};
  }
  static HWY_INLINE Codes v_codes(U32Vec bytes) { return k_codes(bytes); }
  static HWY_INLINE Row row(const std::byte* codes, int64_t, int four) {
    return {hn::BitCast(D16(), all_at(codes + 8 * four)), hn::BitCast(D16(), all_at(codes + 8 * four + 4))};
  }
  static HWY_INLINE void add_k(I32Vec (&sums)[kSums], const Codes& codes, const Row& row) {
    I32Vec rest = hn::Zero(I32Tag());  // not used on x86, where lanes stay in their order
    sums[0] = hn::ReorderWidenMulAccumulate(I32Tag(), codes.even, row.even, sums[0], rest);
    sums[0] = hn::ReorderWidenMulAccumulate(I32Tag(), codes.odd, row.odd, sums[0], rest);
  }
  static HWY_INLINE void add_v(I32Vec (&sums)[kSums], const Codes& codes, const Row& row) { add_k(sums, codes, row); }
  static HWY_INLINE I32Vec total(const I32Vec (&sums)[kSums]) { return sums[0]; }
  // v = factor x [n] as words.
  template <int kBelow>
  static HWY_INLINE void code(const float* x, int64_t n, float factor, std::byte* codes, int64_t) {
    const hn::Repartition<uint64_t, D> d64;
    const hn::Half<decltype(d64)> half;
    for (int64_t j = 0; j < n; j += kN) {
      // In each four words in the order 0, 2, 1, 3: lanes 0 and 1 with lanes 2 and 3 in their high halves.
      const I32Vec v = hn::NearestInt(hn::Mul(load(x + j), all(factor)));
      const I32Vec low = hn::And(v, hn::Set(I32Tag(), 0xffff));
      const auto pairs = hn::BitCast(d64, hn::Or(low, hn::ShiftLeft<16>(hn::Shuffle1032(v))));
      hn::StoreU(hn::LowerHalf(half, hn::ConcatEven(d64, pairs, pairs)), half,
                 reinterpret_cast<uint64_t*>(codes + 2 * j));
    }
  }
  static HWY_INLINE int32_t sum(const std::byte*, int64_t, int64_t, int64_t) { return 0; }  // never called
  static constexpr bool kUnsignedK = false;
};
#else
struct WordDots {
  static constexpr int kSums = 1;
  struct Codes {
    I32Vec code[4];
  };
  using Row = Codes;
  static HWY_INLINE Codes k_codes(U32Vec bytes) {
    const I32Vec x = hn::BitCast(I32Tag(), bytes);
    return {{hn::ShiftRight<24>(hn::ShiftLeft<24>(x)), hn::ShiftRight<24>(hn::ShiftLeft<16>(x)),
             hn::ShiftRight<24>(hn::ShiftLeft<8>(x)), hn::ShiftRight<24>(x)}};
  }
  static HWY_INLINE Codes v_codes(U32Vec bytes) { return k_codes(bytes); }
  static HWY_INLINE Row row(const std::byte* codes, int64_t, int four) {
    int16_t words[4];
    std::memcpy(words, codes + 8 * four, sizeof(words));
    const auto word = [&](int i) { return hn::Set(I32Tag(), int32_t{words[i]}); };
    return {{word(0), word(2), word(1), word(3)}};
  }
  static HWY_INLINE void add_k(I32Vec (&sums)[kSums], const Codes& codes, const Row& row) {
    for (int i = 0; i < 4; ++i) sums[0] = hn::Add(sums[0], hn::Mul(codes.code[i], row.code[i]));
  }
  static HWY_INLINE void add_v(I32Vec (&sums)[kSums], const Codes& codes, const Row& row) { add_k(sums, codes, row); }
  static HWY_INLINE I32Vec total(const I32Vec (&sums)[kSums]) { return sums[0]; }
  template <int kBelow>
  static HWY_INLINE void code(const float* x, int64_t n, float factor, std::byte* codes, int64_t) {
    auto* words = reinterpret_cast<int16_t*>(codes);
    constexpr int kOrder[4] = {0, 2, 1, 3};
    for (int64_t j = 0; j < n; j += kN) {
      int32_t lanes[kN];
      hn::StoreU(hn::NearestInt(hn::Mul(load(x + j), all(factor))), I32Tag(), lanes);
      for (int64_t i = j; i < j + kN; ++i) words[i / 4 * 4 + kOrder[i % 4]] = static_cast<int16_t>(lanes[i - j]);
    }
  }
  static HWY_INLINE int32_t sum(const std::byte*, int64_t, int64_t, int64_t) { return 0; }  // never called
  static constexpr bool kUnsignedK = false;
};
#endif

}  // namespace
}  // namespace vlcache::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
