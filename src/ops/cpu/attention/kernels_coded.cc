// The kernels for coded pages: Highway, compiled per target, with products of bytes or of words. Whole numbers are
// multiplied by whole numbers, so sums are the same on every instruction set.
#include <hwy/cache_control.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "ops/cpu/attention/kernels.h"
#include "ops/cpu/simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/attention/kernels_coded.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

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

// Prefetches the next bytes, some lines a step.
class Fetch {
 public:
  Fetch(const std::byte* from, int lines_per_step, int lines)
      : next_(from), per_step_(lines_per_step), left_(from != nullptr ? lines : 0) {}

  HWY_INLINE void step() {
    for (int i = 0; i < per_step_ && left_ > 0; ++i, --left_, next_ += 64) hwy::Prefetch(next_);
  }

 private:
  const std::byte* next_;
  int per_step_, left_;
};

// How four codes of each lane meet four whole numbers of a row, the same for all lanes. Codes: of a vector of lanes;
// Row: of the row. kSums sums, of which total() makes one.
#if defined(VLCACHE_BYTE_DOTS)
struct ByteDots {
  static constexpr int kSums = 2;
  using Codes = U32Vec;
  struct Row {
    U32Vec high, low;
  };
  // Codes of K without a sign, for which CodedQuery::start makes up.
  static HWY_INLINE Codes k_codes(const std::byte* p) { return hn::Xor(lanes_at(p), hn::Set(U32Tag(), 0x80808080u)); }
  static HWY_INLINE Codes v_codes(const std::byte* p) { return lanes_at(p); }
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
  // 64, they are 0. Returns the sum of all v, lanes apart.
  template <int kBelow>
  static HWY_INLINE I32Vec code(const float* x, int64_t n, float factor, std::byte* codes, int64_t plane) {
    const hn::Repartition<uint8_t, D> d8;
    const I32Vec low = hn::Set(I32Tag(), 127), below = hn::Set(I32Tag(), kBelow);
    I32Vec sum = hn::Zero(I32Tag());
    for (int64_t j = 0; j < n; j += 4 * kN) {
      I32Vec v[4], high[4];
      for (int i = 0; i < 4; ++i) {
        const int64_t at = j + i * kN;
        v[i] = at < n ? hn::NearestInt(hn::Mul(load(x + at), all(factor))) : hn::Zero(I32Tag());
        sum = hn::Add(sum, v[i]);
        const I32Vec raised = hn::Add(v[i], below);
        high[i] = hn::ShiftRight<7>(raised);
        v[i] = hn::Sub(hn::And(raised, low), below);
      }
      hn::StoreU(hn::BitCast(d8, bytes_of(high[0], high[1], high[2], high[3])), d8,
                 reinterpret_cast<uint8_t*>(codes) + j);
      hn::StoreU(hn::BitCast(d8, bytes_of(v[0], v[1], v[2], v[3])), d8, reinterpret_cast<uint8_t*>(codes) + plane + j);
    }
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
  static HWY_INLINE Codes k_codes(const std::byte* p) {
    const Words both = hn::BitCast(D16(), lanes_at(p));
    return {hn::ShiftRight<8>(hn::ShiftLeft<8>(both)), hn::ShiftRight<8>(both)};
  }
  static HWY_INLINE Codes v_codes(const std::byte* p) { return k_codes(p); }
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
  static HWY_INLINE I32Vec code(const float* x, int64_t n, float factor, std::byte* codes, int64_t) {
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
    return hn::Zero(I32Tag());
  }
  static constexpr bool kUnsignedK = false;
};
#else
struct WordDots {
  static constexpr int kSums = 1;
  struct Codes {
    I32Vec code[4];
  };
  using Row = Codes;
  static HWY_INLINE Codes k_codes(const std::byte* p) {
    const I32Vec x = hn::BitCast(I32Tag(), lanes_at(p));
    return {{hn::ShiftRight<24>(hn::ShiftLeft<24>(x)), hn::ShiftRight<24>(hn::ShiftLeft<16>(x)),
             hn::ShiftRight<24>(hn::ShiftLeft<8>(x)), hn::ShiftRight<24>(x)}};
  }
  static HWY_INLINE Codes v_codes(const std::byte* p) { return k_codes(p); }
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
  static HWY_INLINE I32Vec code(const float* x, int64_t n, float factor, std::byte* codes, int64_t) {
    auto* words = reinterpret_cast<int16_t*>(codes);
    constexpr int kOrder[4] = {0, 2, 1, 3};
    for (int64_t j = 0; j < n; j += kN) {
      int32_t lanes[kN];
      hn::StoreU(hn::NearestInt(hn::Mul(load(x + j), all(factor))), I32Tag(), lanes);
      for (int64_t i = j; i < j + kN; ++i) words[i / 4 * 4 + kOrder[i % 4]] = static_cast<int16_t>(lanes[i - j]);
    }
    return hn::Zero(I32Tag());
  }
  static constexpr bool kUnsignedK = false;
};
#endif

// Vectors of lanes for MR rows at once: their sums, codes and a row leave some of 32 or 16 registers.
template <class Dots, int MR>
constexpr int vectors() {
  constexpr int kSums = MR * Dots::kSums;
  if (kManyRegisters) return kSums <= 6 ? 4 : 2;
  return kSums <= 2 ? 4 : kSums <= 6 ? 2 : 1;
}

template <class Dots, int MR>
void scores_rows(const ScoreTile& t) {
  constexpr int NR = vectors<Dots, MR>();
  const int64_t plane = query_plane(t.head_dim);
  const auto* scales = reinterpret_cast<const bf16*>(t.k + int64_t{kPageSlots} * t.head_dim);
  CodedQuery query[MR];
  for (int i = 0; i < MR; ++i)
    std::memcpy(&query[i], t.q + (i + 1) * t.q_stride - sizeof(CodedQuery), sizeof(CodedQuery));
  for (int column = 0; column < t.n; column += NR * kN) {
    I32Vec sums[MR][NR][Dots::kSums];
    for (int i = 0; i < MR; ++i) {
      for (int j = 0; j < NR; ++j) {
        sums[i][j][0] = hn::Zero(I32Tag());
        sums[i][j][Dots::kSums - 1] = hn::Set(I32Tag(), query[i].start);
      }
    }
    const std::byte* k = t.k + 4 * column;
    Fetch fetch(column == 0 ? t.prefetch : nullptr, 2 * t.prefetch_lines, t.prefetch_total);
    for (int four = 0; four < t.head_dim / 4; ++four, k += 4 * kPageSlots) {
      fetch.step();
      typename Dots::Codes codes[NR];
      for (int j = 0; j < NR; ++j) codes[j] = Dots::k_codes(k + 4 * kN * j);
      for (int i = 0; i < MR; ++i) {
        const typename Dots::Row row = Dots::row(t.q + i * t.q_stride, plane, four);
        for (int j = 0; j < NR; ++j) Dots::add_k(sums[i][j], codes[j], row);
      }
    }
    for (int j = 0; j < NR; ++j) {
      const V scale = load_f32(scales + column + kN * j);
      for (int i = 0; i < MR; ++i) {
        const V sum = hn::ConvertTo(D(), Dots::total(sums[i][j]));
        store(hn::Mul(hn::Mul(sum, all(query[i].scale)), scale), t.s + i * t.s_stride + column + kN * j);
      }
    }
  }
}

// The largest |x| of n, a multiple of 16; NaN if one of them is.
HWY_INLINE float largest(const float* x, int64_t n) {
  I32Vec most = hn::Zero(I32Tag());  // bits without the sign, which are in the order of their values, NaN above all
  const I32Vec no_sign = hn::Set(I32Tag(), 0x7fffffff);
  for (int64_t j = 0; j < n; j += kN) most = hn::Max(most, hn::And(hn::BitCast(I32Tag(), load(x + j)), no_sign));
  return std::bit_cast<float>(hn::GetLane(hn::MaxOfLanes(I32Tag(), most)));
}
constexpr float kLeast = 1e-30f;  // below it, 1 / largest is no number
HWY_INLINE bool has_codes(float largest) { return largest >= kLeast && largest <= std::numeric_limits<float>::max(); }

template <class Dots>
void code_query(const float* x, int64_t d, float unit, std::byte* y) {
  const int64_t plane = query_plane(d), padded = (d + 63) / 64 * 64;
  const float most = largest(x, padded);
  CodedQuery query{.scale = most < kLeast ? 0.0f : unit * (most / static_cast<float>(kMostQuery)), .start = 0};
  if (has_codes(most)) {
    const I32Vec sum = Dots::template code<64>(x, padded, static_cast<float>(kMostQuery) / most, y, plane);
    if (Dots::kUnsignedK) query.start = -128 * hn::GetLane(hn::SumOfLanes(I32Tag(), sum));
  } else {
    std::memset(y, 0, static_cast<size_t>(2 * plane));
    // A row that is not finite becomes NaN.
    if (!(most < kLeast)) query.scale = std::numeric_limits<float>::quiet_NaN();
  }
  std::memcpy(y + 2 * plane - sizeof query, &query, sizeof query);
}

// A strip's weights as whole numbers, relative to the largest of each row.
template <int kRows>
struct WholeWeights {
  alignas(64) std::byte codes[kRows][2 * kBlockColumns];  // as a CodedQuery's: halves in two planes, or words
  float unit[kRows];                                      // what 1 is worth
};

template <class Dots, int kRows>
void weigh(const ValueTile& t, int i, WholeWeights<kRows>& to) {
  const float* p = reinterpret_cast<const float*>(t.p + i * t.p_stride);
  const int n = (t.n + kLanes - 1) / kLanes * kLanes;
  const float most = largest(p, n);
  to.unit[i] = most < kLeast ? 0.0f : most / static_cast<float>(kMostWeight);
  if (has_codes(most)) {
    Dots::template code<0>(p, n, static_cast<float>(kMostWeight) / most, to.codes[i], kBlockColumns);
  } else {
    std::memset(to.codes[i], 0, sizeof(to.codes[i]));
  }
}

template <class Dots, int MR, int NR>
HWY_INLINE void values_columns(const ValueTile& t, const WholeWeights<MR>& w, int column) {
  I32Vec sums[MR][NR][Dots::kSums];
  for (int i = 0; i < MR; ++i) {
    for (int j = 0; j < NR; ++j) {
      for (I32Vec& sum : sums[i][j]) sum = hn::Zero(I32Tag());
    }
  }
  for (int begin = 0, four = 0; begin < t.n; begin += kPageSlots) {
    const std::byte* v = t.v[begin / kPageSlots] + 4 * column;
    const bool first = column == 0 && t.prefetch != nullptr;
    Fetch fetch(first ? t.prefetch[begin / kPageSlots] : nullptr, 2 * t.prefetch_lines, t.prefetch_total);
    const int end = four + (std::min(t.n - begin, kPageSlots) + 3) / 4;
    for (; four < end; ++four, v += int64_t{4} * t.padded_dim) {
      fetch.step();
      typename Dots::Codes codes[NR];
      for (int j = 0; j < NR; ++j) codes[j] = Dots::v_codes(v + 4 * kN * j);
      for (int i = 0; i < MR; ++i) {
        const typename Dots::Row row = Dots::row(w.codes[i], kBlockColumns, four);
        for (int j = 0; j < NR; ++j) Dots::add_v(sums[i][j], codes[j], row);
      }
    }
  }
  for (int i = 0; i < MR; ++i) {
    float* o = t.o + i * t.o_stride + column;
    for (int j = 0; j < NR; ++j) {
      const V sum = hn::ConvertTo(D(), Dots::total(sums[i][j]));
      store(hn::MulAdd(sum, all(w.unit[i]), load(o + kN * j)), o + kN * j);
    }
  }
}

template <class Dots, int MR>
void values_rows(const ValueTile& t) {
  constexpr int NR = vectors<Dots, MR>();
  WholeWeights<MR> w;
  for (int i = 0; i < MR; ++i) weigh<Dots>(t, i, w);
  int column = 0;
  for (; column + NR * kN <= t.padded_dim; column += NR * kN) values_columns<Dots, MR, NR>(t, w, column);
  if constexpr (NR > 2) {
    for (; column + 2 * kN <= t.padded_dim; column += 2 * kN) values_columns<Dots, MR, 2>(t, w, column);
  }
  for (; column < t.padded_dim; column += kN) values_columns<Dots, MR, 1>(t, w, column);
}

template <class Dots>
void scores_coded(const ScoreTile& t) {
  switch (t.m) {
    case 1:
      return scores_rows<Dots, 1>(t);
    case 2:
      return scores_rows<Dots, 2>(t);
    case 3:
      return scores_rows<Dots, 3>(t);
    default:
      return scores_rows<Dots, kCodedStripRows>(t);
  }
}

template <class Dots>
void values_coded(const ValueTile& t) {
  switch (t.m) {
    case 1:
      return values_rows<Dots, 1>(t);
    case 2:
      return values_rows<Dots, 2>(t);
    case 3:
      return values_rows<Dots, 3>(t);
    default:
      return values_rows<Dots, kCodedStripRows>(t);
  }
}

#if HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_AVX2
// Products of tiles of bytes cost the same for one row and eight. In caches three rows (head size 64) take 0.88 of the
// time of byte dots, two rows (128) 1.04.
constexpr int kFewTileRows = 2;
constexpr int kMostParts = 1024 / 64;

void scores_by_tiles(const ScoreTile& t) {
  if (t.m <= kFewTileRows) return scores_coded<ByteDots>(t);
  const int64_t plane = query_plane(t.head_dim);
  alignas(64) int32_t sums[2 * kByteTileRows][kPageSlots];
  const std::byte *k[kMostParts], *prefetch[kMostParts];
  const int n_parts = (t.head_dim + 63) / 64, n = (t.n + kLanes - 1) / kLanes * kLanes;
  const int lines = (t.prefetch_total + n_parts - 1) / n_parts;
  for (int i = 0; i < n_parts; ++i) {
    k[i] = t.k + int64_t{64} * kPageSlots * i;
    if (t.prefetch != nullptr) prefetch[i] = t.prefetch + int64_t{64} * lines * i;
  }
  multiply_bytes_amx({.a = t.q,
                      .a_stride = plane,
                      .n_rows = 2 * t.m,
                      .b = k,
                      .b_stride = 4 * kPageSlots,
                      .n_parts = n_parts,
                      .last = t.head_dim - 64 * (n_parts - 1),
                      .n = n,
                      .sums = sums[0],
                      .prefetch = t.prefetch != nullptr ? prefetch : nullptr,
                      .prefetch_lines = lines});
  const auto* scales = reinterpret_cast<const bf16*>(t.k + int64_t{kPageSlots} * t.head_dim);
  for (int i = 0; i < t.m; ++i) {
    CodedQuery query;
    std::memcpy(&query, t.q + (i + 1) * t.q_stride - sizeof(query), sizeof(query));
    for (int j = 0; j < n; j += kN) {
      const I32Vec high = hn::Load(I32Tag(), &sums[2 * i][j]), low = hn::Load(I32Tag(), &sums[2 * i + 1][j]);
      const V sum = hn::ConvertTo(D(), hn::Add(hn::ShiftLeft<7>(high), low));
      store(hn::Mul(hn::Mul(sum, all(query.scale)), load_f32(scales + j)), t.s + i * t.s_stride + j);
    }
  }
}

void values_by_tiles(const ValueTile& t) {
  if (t.m <= kFewTileRows) return values_coded<ByteDots>(t);
  WholeWeights<kByteTileRows> w;
  for (int i = 0; i < t.m; ++i) weigh<ByteDots>(t, i, w);
  alignas(64) int32_t sums[2 * kByteTileRows][64];
  const int n_parts = (t.n + kPageSlots - 1) / kPageSlots;
  for (int column = 0; column < t.padded_dim; column += 64) {
    const std::byte* v[kBlockPages];
    for (int i = 0; i < n_parts; ++i) v[i] = t.v[i] + 4 * column;
    const int n = std::min(t.padded_dim - column, 64);
    multiply_bytes_amx({.a = w.codes[0],
                        .a_stride = kBlockColumns,
                        .n_rows = 2 * t.m,
                        .b = v,
                        .b_stride = int64_t{4} * t.padded_dim,
                        .n_parts = n_parts,
                        .last = 64,
                        .n = n,
                        .sums = sums[0],
                        .prefetch = column == 0 ? t.prefetch : nullptr,
                        .prefetch_lines = t.prefetch_total});
    for (int i = 0; i < t.m; ++i) {
      float* o = t.o + i * t.o_stride + column;
      for (int j = 0; j < n; j += kN) {
        const I32Vec high = hn::Load(I32Tag(), &sums[2 * i][j]), low = hn::Load(I32Tag(), &sums[2 * i + 1][j]);
        const V sum = hn::ConvertTo(D(), hn::Add(hn::ShiftLeft<7>(high), low));
        store(hn::MulAdd(sum, all(w.unit[i]), load(o + j)), o + j);
      }
    }
  }
}
#endif

// The lane that the butterfly of stride kStride pairs with each lane.
#if HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR
template <int kStride>
HWY_INLINE V partner(V x) {
  if constexpr (kStride == 1) return hn::Shuffle2301(x);
  if constexpr (kStride == 2) return hn::Shuffle1032(x);
  if constexpr (kStride == 4) return hn::SwapAdjacentBlocks(x);
  if constexpr (kStride == 8) return hn::ConcatLowerUpper(D(), x, x);
}

template <int kStride>
HWY_INLINE V butterfly(V x) {
  const I32Tag di;
  const auto upper = hn::Ne(hn::And(hn::Iota(di, 0), hn::Set(di, kStride)), hn::Zero(di));
  const V sign = hn::IfThenElse(hn::RebindMask(D(), upper), all(-1.0f), all(1.0f));
  return hn::MulAdd(x, sign, partner<kStride>(x));
}
#endif

// Strides from the largest on, which is the order that rotate_head adds in.
void rotate(float* x, int64_t n, int64_t block, float factor) {
  const bool in_vectors = HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR && block >= kN;
  const int64_t least = in_vectors ? kN : 1;
  for (int64_t stride = block / 2; stride >= least; stride /= 2) {
    for (int64_t base = 0; base < n; base += 2 * stride) {
      float *a = x + base, *b = a + stride;
      if (in_vectors) {
        for (int64_t i = 0; i < stride; i += kN) {
          const V p = load(a + i), q = load(b + i);
          store(hn::Add(p, q), a + i);
          store(hn::Sub(p, q), b + i);
        }
        continue;
      }
      for (int64_t i = 0; i < stride; ++i) {
        const float p = a[i], q = b[i];
        a[i] = p + q, b[i] = p - q;
      }
    }
  }
  if (!in_vectors) {
    for (int64_t i = 0; i < n; ++i) x[i] *= factor;
    return;
  }
#if HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR
  for (int64_t i = 0; i < n; i += kN) {
    V v = load(x + i);
    if constexpr (kN > 8) v = butterfly<8>(v);
    v = butterfly<1>(butterfly<2>(butterfly<4>(v)));
    store(hn::Mul(v, all(factor)), x + i);
  }
#endif
}

void scale_columns(float* s, int64_t s_stride, int m, const float* scale, int n) {
  for (int j = 0; j < n; j += kN) {
    const V x = load(scale + j);
    for (int i = 0; i < m; ++i) store(hn::Mul(load(s + i * s_stride + j), x), s + i * s_stride + j);
  }
}

template <class Dots>
void fill(AttentionKernels* kernels) {
  constexpr size_t kCodec = static_cast<size_t>(KvCodec::kInt8);
  kernels->query_form[kCodec] = QueryForm::kCodes;
  kernels->scores[kCodec] = scores_coded<Dots>;
  kernels->values[kCodec] = values_coded<Dots>;
  kernels->softmax[kCodec] = kernels->softmax[static_cast<size_t>(KvCodec::kF32)];
  for (int codec = 0; codec < kKvCodecs; ++codec) {
    if (is_coded(static_cast<KvCodec>(codec))) kernels->strip_rows[codec] = kCodedStripRows;
  }
  kernels->code_query = code_query<Dots>;
  kernels->rotate = rotate;
  kernels->scale_columns = scale_columns;
}

void fill_words(AttentionKernels* kernels) { fill<WordDots>(kernels); }
#if defined(VLCACHE_BYTE_DOTS)
void fill_bytes(AttentionKernels* kernels) { fill<ByteDots>(kernels); }
#else
void fill_bytes(AttentionKernels*) {}  // never called
#endif
void fill_tiles([[maybe_unused]] AttentionKernels* kernels) {
#if HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_AVX2
  constexpr size_t kCodec = static_cast<size_t>(KvCodec::kInt8);
  kernels->strip_rows[kCodec] = kByteTileRows;
  kernels->scores[kCodec] = scores_by_tiles;
  kernels->values[kCodec] = values_by_tiles;
#endif
}

}  // namespace
}  // namespace vlcache::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace vlcache::cpu {
HWY_EXPORT(fill_words);
HWY_EXPORT(fill_bytes);
HWY_EXPORT(fill_tiles);

void use_coded(AttentionKernels& kernels, Isa isa, bool byte_dots) {
  if (!byte_dots) return VLCACHE_SIMD(isa, fill_words)(&kernels);
  VLCACHE_SIMD(isa, fill_bytes)(&kernels);
  if (isa >= Isa::kAmxBf16) VLCACHE_SIMD(isa, fill_tiles)(&kernels);
}

}  // namespace vlcache::cpu
#endif  // HWY_ONCE
