// The kernels for coded pages: Highway, compiled per target, with products of bytes or of words. Whole numbers are
// multiplied by whole numbers, so sums are the same on every instruction set.
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

#include "ops/cpu/attention/coded_dots-inl.h"
#include "ops/cpu/byte_dot-inl.h"
#include "ops/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace vlcache::cpu::HWY_NAMESPACE {
namespace {

// Prefetches the next bytes into the L2 cache, some lines a step: a core waits for few lines of its L1 cache at once,
// which is less than the memory's bandwidth (Sapphire Rapids: decode is 1.14 times as fast as with prefetches to L1).
class Fetch {
  static constexpr int kLevel = 2;

 public:
  Fetch(const std::byte* from, int lines_per_step, int lines)
      : next_(from), per_step_(lines_per_step), left_(from != nullptr ? lines : 0) {}

  HWY_INLINE void step() {
    for (int i = 0; i < per_step_ && left_ > 0; ++i, --left_, next_ += 64) __builtin_prefetch(next_, 0, kLevel);
  }

 private:
  const std::byte* next_;
  int per_step_, left_;
};

// How a word of a lane holds codes: kFours fours, of which bytes<i>() makes one. A group has one scale.
struct Int8 {
  static constexpr KvCodec kCodec = KvCodec::kInt8;
  static constexpr QueryForm kQuery = QueryForm::kCodes8;
  static constexpr int kFours = 1;
  static constexpr float kUnit = 1.0f;  // what 1 in a byte is worth, of the scale
  static constexpr int group(int width) { return width; }
  template <int kFour>
  static HWY_INLINE U32Vec bytes(U32Vec word) {
    return word;
  }
};
constexpr int kGroup = static_cast<int>(kInt4Group);
// Bytes are 16 times the codes, because to extend their signs costs more instructions.
struct Int4 {
  static constexpr KvCodec kCodec = KvCodec::kInt4;
  static constexpr QueryForm kQuery = QueryForm::kCodes4;
  static constexpr int kFours = 2;
  static constexpr float kUnit = 0x1p-4f;
  static constexpr int group(int) { return kGroup; }
  template <int kFour>
  static HWY_INLINE U32Vec bytes(U32Vec word) {
    const U32Vec high = hn::Set(U32Tag(), 0xf0f0f0f0u);
    return hn::And(kFour == 0 ? hn::ShiftLeft<4>(word) : word, high);
  }
};
// The scales of a group, of 64 slots, after codes of `width` values of each.
template <class Codec>
HWY_INLINE const bf16* scales_of(const std::byte* half, int64_t width, int group) {
  return reinterpret_cast<const bf16*>(half + kPageSlots * width / Codec::kFours) + group * kPageSlots;
}

// Vectors of lanes for MR rows at once: their sums, codes and a row leave some of 32 or 16 registers.
template <class Dots, int MR>
constexpr int vectors() {
  constexpr int kSums = MR * Dots::kSums;
  if (kManyRegisters) return kSums <= 6 ? 4 : 2;
  return kSums <= 2 ? 4 : kSums <= 6 ? 2 : 1;
}

// Adds the products of four kFour of each word.
template <class Dots, class Codec, int kFour, int MR, int NR>
HWY_INLINE void add_k(I32Vec (&sums)[MR][NR][Dots::kSums], const U32Vec (&words)[NR], const ScoreTile& t, int four) {
  const int64_t plane = query_plane(t.head_dim);
  typename Dots::Codes codes[NR];
  for (int j = 0; j < NR; ++j) codes[j] = Dots::k_codes(Codec::template bytes<kFour>(words[j]));
  for (int i = 0; i < MR; ++i) {
    const typename Dots::Row row = Dots::row(t.q + i * t.q_stride, plane, four + kFour);
    for (int j = 0; j < NR; ++j) Dots::add_k(sums[i][j], codes[j], row);
  }
}

HWY_INLINE CodedQuery coded_query(const ScoreTile& t, int row) {
  CodedQuery query;
  std::memcpy(&query, t.q + (row + 1) * t.q_stride - sizeof(query), sizeof(query));
  return query;
}

// Adds a group's part to the scores, of which the first is the beginning.
HWY_INLINE void add_scores(V part, int group, float* s) { store(group == 0 ? part : hn::Add(load(s), part), s); }

template <class Dots, class Codec, int MR>
void scores_rows(const ScoreTile& t) {
  constexpr int NR = vectors<Dots, MR>(), kStep = 4 * Codec::kFours;
  const int size = Codec::group(t.head_dim);
  CodedQuery query[MR];
  for (int i = 0; i < MR; ++i) query[i] = coded_query(t, i);
  for (int column = 0; column < t.n; column += NR * kN) {
    const std::byte* k = t.k + 4 * column;
    Fetch fetch(column == 0 ? t.prefetch : nullptr, kStep / 2 * t.prefetch_lines, t.prefetch_total);
    for (int c = 0, group = 0; c < t.head_dim; ++group) {
      I32Vec sums[MR][NR][Dots::kSums];
      for (int i = 0; i < MR; ++i) {
        for (int j = 0; j < NR; ++j) {
          sums[i][j][0] = hn::Zero(I32Tag());
          sums[i][j][Dots::kSums - 1] = hn::Set(I32Tag(), query[i].start[group]);
        }
      }
      for (const int end = std::min(c + size, t.head_dim); c < end; c += kStep, k += 4 * kPageSlots) {
        fetch.step();
        U32Vec words[NR];
        for (int j = 0; j < NR; ++j) words[j] = lanes_at(k + 4 * kN * j);
        add_k<Dots, Codec, 0, MR, NR>(sums, words, t, c / 4);
        if constexpr (Codec::kFours == 2) add_k<Dots, Codec, 1, MR, NR>(sums, words, t, c / 4);
      }
      for (int j = 0; j < NR; ++j) {
        const V scale = load_f32(scales_of<Codec>(t.k, t.head_dim, group) + column + kN * j);
        for (int i = 0; i < MR; ++i) {
          const V sum = hn::ConvertTo(D(), Dots::total(sums[i][j]));
          add_scores(hn::Mul(hn::Mul(sum, all(query[i].scale)), scale), group, t.s + i * t.s_stride + column + kN * j);
        }
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

template <class Dots, class Codec>
void code_query(const float* x, int64_t d, std::byte* y) {
  const int64_t plane = query_plane(d), padded = (d + 63) / 64 * 64, size = Codec::group(static_cast<int>(d));
  const float most = largest(x, padded);
  CodedQuery query{.scale = most < kLeast ? 0.0f : Codec::kUnit * (most / static_cast<float>(kMostQuery)), .start = {}};
  if (has_codes(most)) {
    Dots::template code<64>(x, padded, static_cast<float>(kMostQuery) / most, y, plane);
    for (int64_t c = 0, group = 0; c < d && Dots::kUnsignedK; c += size, ++group) {
      query.start[group] = -128 * Dots::sum(y, plane, c, std::min(c + size, d));
    }
  } else {
    std::memset(y, 0, static_cast<size_t>(2 * plane));
    // A row that is not finite becomes NaN.
    if (!(most < kLeast)) query.scale = std::numeric_limits<float>::quiet_NaN();
  }
  std::memcpy(y + 2 * plane - sizeof query, &query, sizeof query);
}

// A strip's weights of a group as whole numbers, relative to the largest of each row.
template <int kRows>
struct WholeWeights {
  alignas(64) std::byte codes[kRows][2 * kBlockColumns];  // as a CodedQuery's: halves in two planes, or words
  float unit[kRows];                                      // what 1 is worth
};

// The scales of a group of V's columns by slot; of int8 none, because its weights have them already.
template <class Codec>
class ColumnScales {
 public:
  void read(const ValueTile& t, int group) {
    if (Codec::kCodec == KvCodec::kInt8) return;
    V odd = all(0.0f);
    for (int begin = 0; begin < t.n; begin += kPageSlots) {
      const bf16* scales = scales_of<Codec>(t.v[begin / kPageSlots], t.padded_dim, group);
      const int n = std::min((t.n - begin + kLanes - 1) / kLanes * kLanes, kPageSlots);
      for (int j = 0; j < n; j += kN) {
        const V scale = load_f32(scales + j);
        store(scale, scales_ + begin + j);
        odd = hn::Add(odd, hn::Sub(scale, scale));  // 0, or NaN
      }
    }
    any_odd_ = !hn::AllTrue(D(), hn::Eq(odd, all(0.0f)));
  }
  // p [n] times the scales, exactly 0 where p is: slots that are not seen may have any scale.
  const float* times(const float* p, int n, float* scaled) const {
    if (Codec::kCodec == KvCodec::kInt8) return p;
    for (int j = 0; j < n && !any_odd_; j += kN) store(hn::Mul(load(p + j), load(scales_ + j)), scaled + j);
    for (int j = 0; j < n && any_odd_; j += kN) {
      const V x = load(p + j);
      store(hn::IfThenZeroElse(hn::Eq(x, all(0.0f)), hn::Mul(x, load(scales_ + j))), scaled + j);
    }
    return scaled;
  }

 private:
  alignas(64) float scales_[Codec::kCodec == KvCodec::kInt8 ? 1 : kBlockColumns];
  bool any_odd_ = false;
};

template <class Dots, class Codec, int kRows>
void weigh(const ValueTile& t, int i, const ColumnScales<Codec>& scales, WholeWeights<kRows>& to) {
  alignas(64) float scaled[kBlockColumns];
  const int n = (t.n + kLanes - 1) / kLanes * kLanes;
  const float* w = scales.times(reinterpret_cast<const float*>(t.p + i * t.p_stride), n, scaled);
  const float most = largest(w, n);
  to.unit[i] = most < kLeast ? 0.0f : Codec::kUnit * (most / static_cast<float>(kMostWeight));
  if (has_codes(most)) {
    Dots::template code<0>(w, n, static_cast<float>(kMostWeight) / most, to.codes[i], kBlockColumns);
  } else {
    std::memset(to.codes[i], 0, sizeof(to.codes[i]));
  }
}

template <class Dots, class Codec, int kFour, int MR, int NR>
HWY_INLINE void add_v(I32Vec (&sums)[MR][NR][Dots::kSums], const U32Vec (&words)[NR], const WholeWeights<MR>& w,
                      int four) {
  typename Dots::Codes codes[NR];
  for (int j = 0; j < NR; ++j) codes[j] = Dots::v_codes(Codec::template bytes<kFour>(words[j]));
  for (int i = 0; i < MR; ++i) {
    const typename Dots::Row row = Dots::row(w.codes[i], kBlockColumns, four + kFour);
    for (int j = 0; j < NR; ++j) Dots::add_v(sums[i][j], codes[j], row);
  }
}

template <class Dots, class Codec, int MR, int NR>
HWY_INLINE void values_columns(const ValueTile& t, const WholeWeights<MR>& w, int column) {
  constexpr int kStep = 4 * Codec::kFours;
  I32Vec sums[MR][NR][Dots::kSums];
  for (int i = 0; i < MR; ++i) {
    for (int j = 0; j < NR; ++j) {
      for (I32Vec& sum : sums[i][j]) sum = hn::Zero(I32Tag());
    }
  }
  for (int begin = 0; begin < t.n; begin += kPageSlots) {
    const std::byte* v = t.v[begin / kPageSlots] + 4 * column;
    const bool first = column == 0 && t.prefetch != nullptr;
    Fetch fetch(first ? t.prefetch[begin / kPageSlots] : nullptr, kStep / 2 * t.prefetch_lines, t.prefetch_total);
    const int end = std::min(t.n - begin, kPageSlots);
    for (int slot = 0; slot < end; slot += kStep, v += int64_t{4} * t.padded_dim) {
      fetch.step();
      U32Vec words[NR];
      for (int j = 0; j < NR; ++j) words[j] = lanes_at(v + 4 * kN * j);
      add_v<Dots, Codec, 0, MR, NR>(sums, words, w, (begin + slot) / 4);
      if constexpr (Codec::kFours == 2) add_v<Dots, Codec, 1, MR, NR>(sums, words, w, (begin + slot) / 4);
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

template <class Dots, class Codec, int MR>
void values_rows(const ValueTile& t) {
  constexpr int NR = std::min(vectors<Dots, MR>(), Codec::group(kPageSlots) / kN);
  const int size = Codec::group(t.padded_dim);
  WholeWeights<MR> w;
  ColumnScales<Codec> scales;
  for (int column = 0, group = 0; column < t.padded_dim; ++group) {
    const int end = std::min(column + size, t.padded_dim);
    scales.read(t, group);
    for (int i = 0; i < MR; ++i) weigh<Dots, Codec>(t, i, scales, w);
    for (; column + NR * kN <= end; column += NR * kN) values_columns<Dots, Codec, MR, NR>(t, w, column);
    if constexpr (NR > 2) {
      for (; column + 2 * kN <= end; column += 2 * kN) values_columns<Dots, Codec, MR, 2>(t, w, column);
    }
    for (; column < end; column += kN) values_columns<Dots, Codec, MR, 1>(t, w, column);
  }
}

template <class Dots, class Codec>
void scores_coded(const ScoreTile& t) {
  switch (t.m) {
    case 1:
      return scores_rows<Dots, Codec, 1>(t);
    case 2:
      return scores_rows<Dots, Codec, 2>(t);
    case 3:
      return scores_rows<Dots, Codec, 3>(t);
    default:
      return scores_rows<Dots, Codec, kCodedStripRows>(t);
  }
}

template <class Dots, class Codec>
void values_coded(const ValueTile& t) {
  switch (t.m) {
    case 1:
      return values_rows<Dots, Codec, 1>(t);
    case 2:
      return values_rows<Dots, Codec, 2>(t);
    case 3:
      return values_rows<Dots, Codec, 3>(t);
    default:
      return values_rows<Dots, Codec, kCodedStripRows>(t);
  }
}

#if HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_AVX2
// Products of tiles of bytes cost the same for one row and eight. In caches three rows (head size 64) take 0.88 of the
// time of byte dots, two rows (128) 1.04; K of int4, which is expanded, 1.2 of three rows, 0.95 of four (64).
constexpr int kFewTileRows = 2, kFewInt4Rows = 3;
constexpr int kMostParts = 1024 / 64;
using TileSums = int32_t[2 * kByteTileRows][64];  // two rows, of high and low halves, for each of t.m

HWY_INLINE V total_of(const TileSums& sums, int row, int j) {
  const I32Vec high = hn::Load(I32Tag(), &sums[2 * row][j]), low = hn::Load(I32Tag(), &sums[2 * row + 1][j]);
  return hn::ConvertTo(D(), hn::Add(hn::ShiftLeft<7>(high), low));
}

template <class Codec>
void add_tile_scores(const ScoreTile& t, const TileSums& sums, int n, int group) {
  const bf16* scales = scales_of<Codec>(t.k, t.head_dim, group);
  for (int i = 0; i < t.m; ++i) {
    const V scale = all(coded_query(t, i).scale);
    for (int j = 0; j < n; j += kN) {
      const V part = hn::Mul(hn::Mul(total_of(sums, i, j), scale), load_f32(scales + j));
      add_scores(part, group, t.s + i * t.s_stride + j);
    }
  }
}

void scores_int8_by_tiles(const ScoreTile& t) {
  if (t.m <= kFewTileRows) return scores_coded<ByteDots, Int8>(t);
  alignas(64) TileSums sums;
  const std::byte *k[kMostParts], *prefetch[kMostParts];
  const int n_parts = (t.head_dim + 63) / 64, n = (t.n + kLanes - 1) / kLanes * kLanes;
  const int lines = (t.prefetch_total + n_parts - 1) / n_parts;
  for (int i = 0; i < n_parts; ++i) {
    k[i] = t.k + int64_t{64} * kPageSlots * i;
    if (t.prefetch != nullptr) prefetch[i] = t.prefetch + int64_t{64} * lines * i;
  }
  multiply_bytes_amx({.a = t.q,
                      .a_stride = query_plane(t.head_dim),
                      .n_rows = 2 * t.m,
                      .b = k,
                      .b_stride = 4 * kPageSlots,
                      .n_parts = n_parts,
                      .last = t.head_dim - 64 * (n_parts - 1),
                      .n = n,
                      .sums = sums[0],
                      .prefetch = t.prefetch != nullptr ? prefetch : nullptr,
                      .prefetch_lines = lines});
  add_tile_scores<Int8>(t, sums, n, 0);
}

// n lines of `width` words, `stride` words apart, become twice as many lines of bytes.
HWY_INLINE void expand(const std::byte* from, int64_t stride, int n, int width, std::byte* to) {
  for (int line = 0; line < n; ++line, from += 4 * stride, to += 8 * width) {
    for (int j = 0; j < width; j += kN) {
      const U32Vec word = lanes_at(from + 4 * j);
      hn::Store(Int4::bytes<0>(word), U32Tag(), reinterpret_cast<uint32_t*>(to) + j);
      hn::Store(Int4::bytes<1>(word), U32Tag(), reinterpret_cast<uint32_t*>(to) + width + j);
    }
  }
}

void scores_int4_by_tiles(const ScoreTile& t) {
  if (t.m <= kFewInt4Rows) return scores_coded<ByteDots, Int4>(t);
  alignas(64) TileSums sums;
  // The last group may have fewer dimensions: q is 0 for the others.
  alignas(64) std::byte codes[kGroup * kPageSlots] = {};
  const int n_groups = (t.head_dim + kGroup - 1) / kGroup, n = (t.n + kLanes - 1) / kLanes * kLanes;
  const int lines = (t.prefetch_total + n_groups - 1) / n_groups;
  for (int group = 0; group < n_groups; ++group) {
    const int first = kGroup * group;
    const std::byte* next = t.prefetch != nullptr ? t.prefetch + int64_t{64} * lines * group : nullptr;
    const std::byte* k = codes;
    expand(t.k + first / 2 * kPageSlots, kPageSlots, std::min(kGroup, t.head_dim - first) / 8, kPageSlots, codes);
    multiply_bytes_amx({.a = t.q + first,
                        .a_stride = query_plane(t.head_dim),
                        .n_rows = 2 * t.m,
                        .b = &k,
                        .b_stride = 4 * kPageSlots,
                        .n_parts = 1,
                        .last = kGroup,
                        .n = n,
                        .sums = sums[0],
                        .prefetch = next != nullptr ? &next : nullptr,
                        .prefetch_lines = lines});
    add_tile_scores<Int4>(t, sums, n, group);
  }
}

// Some columns at a time: int8's are read where they lie, a group of int4's is expanded first.
template <class Codec>
void values_by_tiles(const ValueTile& t) {
  if (t.m <= kFewTileRows) return values_coded<ByteDots, Codec>(t);
  constexpr bool kInt8 = Codec::kCodec == KvCodec::kInt8;
  constexpr int kColumns = kInt8 ? 64 : kGroup;
  WholeWeights<kByteTileRows> w;
  ColumnScales<Codec> scales;
  alignas(64) TileSums sums;
  alignas(64) std::byte codes[kBlockPages][kInt8 ? 64 : kPageSlots * kColumns];
  const int n_parts = (t.n + kPageSlots - 1) / kPageSlots;
  for (int column = 0; column < t.padded_dim; column += kColumns) {
    const int n = std::min(t.padded_dim - column, kColumns), group = kInt8 ? 0 : column / kColumns;
    if (column == 0 || !kInt8) {
      scales.read(t, group);
      for (int i = 0; i < t.m; ++i) weigh<ByteDots, Codec>(t, i, scales, w);
    }
    const std::byte* v[kBlockPages];
    for (int i = 0; i < n_parts; ++i) {
      v[i] = t.v[i] + 4 * column;
      if (kInt8) continue;
      expand(v[i], t.padded_dim, kPageSlots / 8, n, codes[i]);
      v[i] = codes[i];
    }
    multiply_bytes_amx({.a = w.codes[0],
                        .a_stride = kBlockColumns,
                        .n_rows = 2 * t.m,
                        .b = v,
                        .b_stride = int64_t{4} * (kInt8 ? t.padded_dim : n),
                        .n_parts = n_parts,
                        .last = 64,
                        .n = n,
                        .sums = sums[0],
                        .prefetch = column == 0 ? t.prefetch : nullptr,
                        .prefetch_lines = t.prefetch_total});
    for (int i = 0; i < t.m; ++i) {
      float* o = t.o + i * t.o_stride + column;
      for (int j = 0; j < n; j += kN) store(hn::MulAdd(total_of(sums, i, j), all(w.unit[i]), load(o + j)), o + j);
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

template <class Dots, class Codec>
void fill_codec(AttentionKernels* kernels) {
  constexpr size_t kCodec = static_cast<size_t>(Codec::kCodec);
  kernels->query_form[kCodec] = Codec::kQuery;
  kernels->scores[kCodec] = scores_coded<Dots, Codec>;
  kernels->values[kCodec] = values_coded<Dots, Codec>;
  kernels->softmax[kCodec] = kernels->softmax[static_cast<size_t>(KvCodec::kF32)];
  kernels->code_query[kCodec] = code_query<Dots, Codec>;
}

void set_strip_rows(AttentionKernels* kernels, int rows) {
  for (int codec = 0; codec < kKvCodecs; ++codec) {
    if (is_coded(static_cast<KvCodec>(codec))) kernels->strip_rows[codec] = rows;
  }
}

template <class Dots>
void fill(AttentionKernels* kernels) {
  fill_codec<Dots, Int8>(kernels);
  fill_codec<Dots, Int4>(kernels);
  set_strip_rows(kernels, kCodedStripRows);
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
  constexpr size_t kInt8 = static_cast<size_t>(KvCodec::kInt8), kInt4 = static_cast<size_t>(KvCodec::kInt4);
  set_strip_rows(kernels, kByteTileRows);
  kernels->scores[kInt8] = scores_int8_by_tiles;
  kernels->scores[kInt4] = scores_int4_by_tiles;
  kernels->values[kInt8] = values_by_tiles<Int8>;
  kernels->values[kInt4] = values_by_tiles<Int4>;
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
