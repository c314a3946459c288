// Reads the parts of quantised panels: scales in f32, codes as bytes; and multiplies bytes. Compiled once per Highway
// target.
#if defined(VLCACHE_OPS_CPU_QUANT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef VLCACHE_OPS_CPU_QUANT_INL_H_
#undef VLCACHE_OPS_CPU_QUANT_INL_H_
#else
#define VLCACHE_OPS_CPU_QUANT_INL_H_
#endif

#include <hwy/highway.h>

#include <cstring>

#include "base/error.h"
#include "ops/cpu/byte_dot-inl.h"
#include "ops/cpu/quant/quant_kernel.h"

HWY_BEFORE_NAMESPACE();
namespace vlcache::cpu::HWY_NAMESPACE {

constexpr size_t kLanes64 = 64 / hn::MaxLanes(F32Tag());  // vectors of a panel's outputs

// Fetches what lies ahead of a line of a panel that is read now, into L2. Measured on an Emerald Rapids, decode of
// the 1.1B shape in 4 bits, percent of the bandwidth: without 63, 1 KiB ahead 69, 2.5 KiB 78, 5 to 10 KiB 80 (into L1
// as much).
HWY_INLINE void prefetch(const std::byte* line) {
  constexpr int64_t kAheadBytes = 5120;
  __builtin_prefetch(line + kAheadBytes, 0, 2);
}
// The same into L1, for 8 bits on 256, where the hardware's own prefetcher keeps up: one row on a Sapphire Rapids reads
// 89 % of the bandwidth, into L2 84.
HWY_INLINE void prefetch_near(const std::byte* line) {
  constexpr int64_t kAheadBytes = 1536;
  __builtin_prefetch(line + kAheadBytes, 0, 3);
}
// The same without VNNI, one line whenever one is read, the scales' lines among them. One row on a Zen 3 reads 73 % of
// the bandwidth in 8 bits and 80 in 4 bits; where a part's lines are fetched together and its scales are not, 55
// and 72.
template <int kBits>
HWY_INLINE void prefetch_by_line(const std::byte* line) {
  constexpr int64_t kAheadBytes = kBits == 8 ? 1024 : 1536;
  __builtin_prefetch(line + kAheadBytes, 0, 3);
}

// ---- scales ---------------------------------------------------------------------------------------------------------

HWY_INLINE F32Vec load_f16(const std::byte* p) {
  const hn::Rebind<hwy::float16_t, F32Tag> d16;
  return hn::PromoteTo(F32Tag(), hn::LoadU(d16, reinterpret_cast<const hwy::float16_t*>(p)));
}

template <typename T>
HWY_INLINE F32Vec load_bytes(const std::byte* p) {
  const hn::Rebind<T, F32Tag> d8;
  return hn::ConvertTo(F32Tag(), hn::PromoteTo(I32Tag(), hn::LoadU(d8, reinterpret_cast<const T*>(p))));
}

// The scales and minima of a block, [bands][64], as they enter w = s c + m; minima are zero in a form without.
struct BlockScales {
  HWY_ALIGN float scales[2 * kPanel];
  HWY_ALIGN float mins[2 * kPanel] = {};
  HWY_ALIGN float factors[kPanel], min_factors[kPanel];  // of byte scales and (negative) minima, from `shared`
  const std::byte* shared = nullptr;
};

template <ScaleKind kScale>
HWY_INLINE F32Vec scale_vector(const std::byte* p, const float* factor) {
  if constexpr (kScale == ScaleKind::kF16) return load_f16(p);
  if constexpr (kScale == ScaleKind::kBF16) return load_f32(reinterpret_cast<const bf16*>(p));
  if constexpr (kScale == ScaleKind::kS8Of256) return hn::Mul(hn::Load(F32Tag(), factor), load_bytes<int8_t>(p));
  if constexpr (kScale == ScaleKind::kU8OfRow) return hn::Mul(hn::Load(F32Tag(), factor), load_bytes<uint8_t>(p));
}

// n: bands * 64.
template <ScaleKind kScale, MinKind kMin>
HWY_NOINLINE void read_scales(const QuantBlock& block, int64_t n, BlockScales& out) {
  const F32Tag d;
  const int64_t lanes = static_cast<int64_t>(hn::MaxLanes(d));
  constexpr bool kShared = kScale == ScaleKind::kS8Of256 || kScale == ScaleKind::kU8OfRow;
  constexpr int64_t kScaleBytes = kShared ? 1 : 2, kMinBytes = kMin == MinKind::kF16 ? 2 : 1;
  if (kShared && block.shared != out.shared) {
    out.shared = block.shared;
    for (int64_t i = 0; i < kPanel; i += lanes) {
      hn::Store(load_f16(block.shared + i * 2), d, out.factors + i);
      if constexpr (kMin == MinKind::kU8) {
        hn::Store(hn::Neg(load_f16(block.shared + (kPanel + i) * 2)), d, out.min_factors + i);
      }
    }
  }
  for (int64_t i = 0; i < n; i += lanes) {
    const int64_t output = i % kPanel;
    const F32Vec s = scale_vector<kScale>(block.scales + i * kScaleBytes, out.factors + output);
    hn::Store(s, d, out.scales + i);
    const std::byte* min = block.mins + i * kMinBytes;
    if constexpr (kMin == MinKind::kF16) hn::Store(load_f16(min), d, out.mins + i);
    if constexpr (kMin == MinKind::kU8) {
      hn::Store(hn::Mul(hn::Load(d, out.min_factors + output), load_bytes<uint8_t>(min)), d, out.mins + i);
    }
    if constexpr (kMin == MinKind::kZeroPoint) {
      hn::Store(hn::Neg(hn::Mul(s, load_bytes<uint8_t>(min))), d, out.mins + i);
    }
  }
}

using ReadScales = void (*)(const QuantBlock& block, int64_t n, BlockScales& out);

template <ScaleKind kScale>
inline ReadScales scales_reader_of(MinKind min) {
  switch (min) {
    case MinKind::kNone:
      return read_scales<kScale, MinKind::kNone>;
    case MinKind::kF16:
      return read_scales<kScale, MinKind::kF16>;
    case MinKind::kU8:
      return read_scales<kScale, MinKind::kU8>;
    case MinKind::kZeroPoint:
      return read_scales<kScale, MinKind::kZeroPoint>;
  }
  CHECK(false);
}

// The function for a form: chosen once a panel, not for each of its blocks.
inline ReadScales scales_reader(const QuantForm& form) {
  switch (form.scale) {
    case ScaleKind::kF16:
      return scales_reader_of<ScaleKind::kF16>(form.min);
    case ScaleKind::kBF16:
      return scales_reader_of<ScaleKind::kBF16>(form.min);
    case ScaleKind::kS8Of256:
      return scales_reader_of<ScaleKind::kS8Of256>(form.min);
    case ScaleKind::kU8OfRow:
      return scales_reader_of<ScaleKind::kU8OfRow>(form.min);
  }
  CHECK(false);
}

// The scales and minima of a unit's groups, [bands][64], of any form.
class AnyScales {
 public:
  static constexpr bool kHasMin = true;
  explicit AnyScales(const QuantLayout& layout)
      : read_(scales_reader(layout.form)), n_values_(layout.bands() * kPanel) {}
  HWY_INLINE void next(const QuantBlock& block) { read_(block, n_values_, scales_); }
  HWY_INLINE F32Vec scale(size_t at) const { return hn::Load(F32Tag(), scales_.scales + at); }
  HWY_INLINE F32Vec min(size_t at) const { return hn::Load(F32Tag(), scales_.mins + at); }

 private:
  ReadScales read_;
  int64_t n_values_;
  BlockScales scales_;
};

// The same of a form that is known when compiling, made where they are needed instead of stored first: one row of 4
// bits takes 0.83 of the time in cache.
template <ScaleKind kScale, MinKind kMin>
class ScalesOf {
 public:
  static_assert(kMin == MinKind::kNone || kMin == MinKind::kU8);
  static constexpr bool kHasMin = kMin != MinKind::kNone;
  static bool fits(const QuantForm& form) { return form.scale == kScale && form.min == kMin; }
  explicit ScalesOf(const QuantLayout& layout) { (void)layout; }
  HWY_INLINE void next(const QuantBlock& block) {
    block_ = block;
    if (kScale == ScaleKind::kU8OfRow && block.shared != shared_) read_factors();
  }
  HWY_INLINE F32Vec scale(size_t at) const {
    constexpr size_t kBytes = kScale == ScaleKind::kU8OfRow ? 1 : 2;
    return scale_vector<kScale>(block_.scales + at * kBytes, factors_ + at % kPanel);
  }
  HWY_INLINE F32Vec min(size_t at) const {
    return hn::Mul(hn::Load(F32Tag(), min_factors_ + at % kPanel), load_bytes<uint8_t>(block_.mins + at));
  }

 private:
  HWY_NOINLINE void read_factors() {
    const F32Tag d;
    shared_ = block_.shared;
    for (int64_t i = 0; i < kPanel; i += static_cast<int64_t>(hn::MaxLanes(d))) {
      hn::Store(load_f16(shared_ + i * 2), d, factors_ + i);
      if constexpr (kHasMin) hn::Store(hn::Neg(load_f16(shared_ + (kPanel + i) * 2)), d, min_factors_ + i);
    }
  }

  QuantBlock block_{};
  const std::byte* shared_ = nullptr;
  HWY_ALIGN float factors_[kPanel], min_factors_[kPanel];
};

// ---- codes ----------------------------------------------------------------------------------------------------------

// What codes stand for, as bytes of 0 to 255 that exceed it by `offset`.
HWY_INLINE int code_offset(const QuantForm& form) {
  if (form.table == CodeTable::kNl4) return 127;
  if (form.table == CodeTable::kFp4) return 12;
  return form.min == MinKind::kNone ? 1 << (form.bits - 1) : 0;
}

// The values of a table plus its offset, 16 bytes for each block of 16 in a vector.
struct TableBytes {
  HWY_ALIGN uint8_t bytes[64] = {};
  explicit TableBytes(const QuantForm& form) {
    if (form.table == CodeTable::kLinear) return;
    for (int i = 0; i < 64; ++i) bytes[i] = static_cast<uint8_t>(table_value(form.table, i % 16) + code_offset(form));
  }
};

HWY_INLINE U32Vec look_up(const TableBytes& table, U32Vec codes) {
#if HWY_TARGET == HWY_SCALAR
  const uint32_t four = hn::GetLane(codes);
  uint32_t values = 0;
  for (int b = 0; b < 32; b += 8) values |= uint32_t{table.bytes[four >> b & 0xfu]} << b;
  return hn::Set(U32Tag(), values);
#else
  const hn::Repartition<uint8_t, F32Tag> d8;
  return hn::BitCast(U32Tag(), hn::TableLookupBytes(hn::Load(d8, table.bytes), hn::BitCast(d8, codes)));
#endif
}

// Quads of one vector of outputs, as bytes. kBits of QuantForm; kTable: 4 bits by a table.
template <int kBits, bool kTable>
class Quads {
 public:
  HWY_INLINE Quads(const std::byte* unit, size_t output, const TableBytes& table)
      : at_(reinterpret_cast<const uint32_t*>(unit) + output), table_(table) {}

  template <size_t kQuad>
  HWY_INLINE U32Vec get() const {
    const U32Tag d;
    if constexpr (kBits == 8) {
      return hn::LoadU(d, at_ + kQuad * kPanel);
    } else {
      const U32Vec both = hn::LoadU(d, at_ + kQuad / 2 * kPanel);
      const U32Vec low = hn::And(kQuad % 2 == 0 ? both : hn::ShiftRight<4>(both), hn::Set(d, 0x0f0f0f0fu));
      if constexpr (kTable) {
        return look_up(table_, low);
      } else if constexpr (kBits == 4) {
        return low;
      } else {
        constexpr int kMore = kBits - 4;  // bits of the high plane
        constexpr size_t kPerLine = static_cast<size_t>(8 / kMore);
        constexpr int kAt = static_cast<int>(kQuad % kPerLine) * kMore;
        U32Vec high = hn::LoadU(d, at_ + (kQuads / 2 + kQuad / kPerLine) * kPanel);
        if constexpr (kAt < 4) high = hn::ShiftLeft<4 - kAt>(high);
        if constexpr (kAt > 4) high = hn::ShiftRight<kAt - 4>(high);
        return hn::Or(low, hn::And(high, hn::Set(d, kMore == 1 ? 0x10101010u : 0x30303030u)));
      }
    }
  }

 private:
  const uint32_t* at_;
  const TableBytes& table_;
};

// For lambdas that `unrolled` calls: compilers leave large ones out of line, with all vectors in memory.
#undef VLCACHE_LAMBDA
#define VLCACHE_LAMBDA HWY_ATTR __attribute__((always_inline))

// Calls body.operator()<i>() for i in [kBegin, kEnd).
template <size_t kBegin, size_t kEnd, typename Body>
HWY_INLINE void unrolled(const Body& body) {
  if constexpr (kBegin < kEnd) {
    body.template operator()<kBegin>();
    unrolled<kBegin + 1, kEnd>(body);
  }
}

// Calls kernel<bits, by a table>.
template <typename Kernel>
HWY_INLINE void for_form(const QuantForm& form, const Kernel& kernel) {
  switch (form.bits) {
    case 4:
      return form.table == CodeTable::kLinear ? kernel.template operator()<4, false>()
                                              : kernel.template operator()<4, true>();
    case 5:
      return kernel.template operator()<5, false>();
    case 6:
      return kernel.template operator()<6, false>();
    default:
      return kernel.template operator()<8, false>();
  }
}

// Calls kernel<bits, by a table, groups of a unit>. Groups of 16 with 5 bits are no QuantForm::valid().
template <typename Kernel>
HWY_INLINE void for_layout(const QuantLayout& layout, const Kernel& kernel) {
  for_form(layout.form, [&]<int kBits, bool kTable>() VLCACHE_LAMBDA {
    if constexpr (kBits != 5) {
      if (layout.bands() == 2) return kernel.template operator()<kBits, kTable, 2>();
    }
    kernel.template operator()<kBits, kTable, 1>();
  });
}

// ---- dot products of bytes ------------------------------------------------------------------------------------------

#if defined(VLCACHE_BYTE_DOTS)
// byte_dot with the four bytes from kAt on of `x`, for all lanes. The operand "m" says what is read; "r" keeps the
// compiler from making a register of each address.
template <size_t kAt, size_t kRows>
HWY_INLINE I32Vec byte_dot(I32Vec sum, U32Vec w, const CodedUnit (&x)[kRows]) {
#if HWY_TARGET == HWY_AVX2
  uint32_t bytes;
  std::memcpy(&bytes, x[0].codes + kAt, 4);
  return byte_dot(sum, w, hn::Set(U32Tag(), bytes));
#else
  asm("vpdpbusd %c4(%2)%{1to16%}, %1, %0" : "+v"(sum.raw) : "v"(w.raw), "r"(x), "m"(x), "i"(kAt));
  return sum;
#endif
}
#endif

// sum + the four products of each lane with words of x, in the order 0, 2, 1, 3.
HWY_INLINE I32Vec word_dot(I32Vec sum, U32Vec w, const std::byte* x) {
  const U32Tag d;
  const U32Vec even = hn::And(w, hn::Set(d, 0x00ff00ffu));
#if defined(VLCACHE_BYTE_DOTS)
  const U32Vec odd = hn::BitCast(d, hn::ShiftRight<8>(hn::BitCast(hn::Repartition<uint16_t, F32Tag>(), w)));
  const uint32_t* pairs = reinterpret_cast<const uint32_t*>(x);
  sum = add_word_pairs(sum, even, hn::Set(d, pairs[0]));
  return add_word_pairs(sum, odd, hn::Set(d, pairs[1]));
#else
  const I32Tag di;
  const U32Vec odd = hn::And(hn::ShiftRight<8>(w), hn::Set(d, 0x00ff00ffu));
  const int16_t* v = reinterpret_cast<const int16_t*>(x);
  const U32Vec byte = hn::Set(d, 0xffu);
  const auto add = [&](U32Vec bytes, int16_t value) {
    sum = hn::Add(sum, hn::Mul(hn::BitCast(di, hn::And(bytes, byte)), hn::Set(di, int32_t{value})));
  };
  add(even, v[0]), add(hn::ShiftRight<16>(even), v[1]), add(odd, v[2]), add(hn::ShiftRight<16>(odd), v[3]);
  return sum;
#endif
}

// How rows are coded: words, or bytes, two halves or one of each input; bytes are multiplied by VNNI or (kPair..) in
// pairs whose sums of a unit fit 16 bits, because codes have 4.
enum class Dots { kWords, kHalves, kOneByte, kPairHalves, kPairOneByte };

// Without VNNI: whether rows for codes of a form are bytes, for AVX2's products of pairs, instead of words. One row of
// 4 bits in cache: 0.77 of the time by words.
constexpr bool by_pairs(int bits, bool table) { return HWY_TARGET == HWY_AVX2 && fit_pairs(bits, table); }

#if defined(VLCACHE_PAIR_DOTS)
// to[v][r] += the sums of unit_dots, of kHalves bytes of each input, the high ones first. 8 quads of codes up to 15 and
// bytes up to 127: at most 30480.
template <size_t kHalves, size_t kBegin, size_t kEnd, typename Codes, size_t kRows, size_t kVectors>
HWY_INLINE void add_pair_dots(const Codes& w, const CodedUnit (&x)[kRows], I32Vec (&to)[kVectors][kRows]) {
  PairVec pairs[kVectors][kRows][kHalves];
  unrolled<kBegin, kEnd>([&]<size_t kQuad>() VLCACHE_LAMBDA {
    unrolled<0, kVectors>([&]<size_t v>() VLCACHE_LAMBDA {
      const U32Vec codes = w.template get<v, kQuad>();
      unrolled<0, kRows * kHalves>([&]<size_t i>() VLCACHE_LAMBDA {
        constexpr size_t r = i / kHalves, kHalf = i % kHalves;
        uint32_t bytes;
        std::memcpy(&bytes, x[r].codes + kHalf * kUnit + 4 * kQuad, 4);
        const U32Vec four = hn::Set(U32Tag(), bytes);
        PairVec& sum = pairs[v][r][kHalf];
        sum = kQuad == kBegin ? byte_pairs(codes, four) : add_byte_pairs(sum, codes, four);
      });
    });
  });
  unrolled<0, kVectors * kRows>([&]<size_t i>() VLCACHE_LAMBDA {
    constexpr size_t v = i / kRows, r = i % kRows;
    if constexpr (kHalves == 2) to[v][r] = add_pairs(to[v][r], pairs[v][r][0], 128);
    to[v][r] = add_pairs(to[v][r], pairs[v][r][kHalves - 1], 1);
  });
}
#endif

// to[v][r] = starts + the sums of kVectors vectors of outputs over quads [kBegin, kEnd) of a unit, of kRows rows.
// Products with different sums alternate: those with one wait for each other, and a scheduler's window holds only those
// of about eight sums. w.get<v, quad>() is read once, where it is needed.
template <Dots kDots, size_t kBegin, size_t kEnd, typename Codes, size_t kRows, size_t kVectors>
HWY_INLINE void unit_dots(const Codes& w, const CodedUnit (&x)[kRows], const UnitSums (&sums)[kRows], size_t band,
                          I32Vec (&to)[kVectors][kRows]) {
  const I32Tag di;
  I32Vec high[kVectors][kRows];
  unrolled<0, kVectors>([&]<size_t v>() VLCACHE_LAMBDA {
    unrolled<0, kRows>([&]<size_t r>()
                           VLCACHE_LAMBDA { to[v][r] = hn::Set(di, sums[r].starts[band]), high[v][r] = hn::Zero(di); });
  });
#if defined(VLCACHE_PAIR_DOTS)
  if constexpr (kDots == Dots::kPairHalves) return add_pair_dots<2, kBegin, kEnd>(w, x, to);
  if constexpr (kDots == Dots::kPairOneByte) return add_pair_dots<1, kBegin, kEnd>(w, x, to);
#endif
#if defined(VLCACHE_BYTE_DOTS)
  if constexpr (kDots == Dots::kHalves || kDots == Dots::kOneByte) {
    unrolled<kBegin, kEnd>([&]<size_t kQuad>() VLCACHE_LAMBDA {
      unrolled<0, kVectors>([&]<size_t v>() VLCACHE_LAMBDA {
        const U32Vec codes = w.template get<v, kQuad>();
        unrolled<0, kRows>([&]<size_t r>() VLCACHE_LAMBDA {
          constexpr size_t kAt = r * sizeof(CodedUnit) + 4 * kQuad;
          if constexpr (kDots == Dots::kHalves) {
            high[v][r] = byte_dot<kAt>(high[v][r], codes, x);
            to[v][r] = byte_dot<kAt + kUnit>(to[v][r], codes, x);
          } else {
            to[v][r] = byte_dot<kAt>(to[v][r], codes, x);
          }
        });
      });
    });
    if constexpr (kDots == Dots::kHalves) {
      unrolled<0, kVectors>([&]<size_t v>() VLCACHE_LAMBDA {
        unrolled<0, kRows>([&]<size_t r>()
                               VLCACHE_LAMBDA { to[v][r] = hn::Add(hn::ShiftLeft<7>(high[v][r]), to[v][r]); });
      });
    }
    return;
  }
#endif
  unrolled<kBegin, kEnd>([&]<size_t kQuad>() VLCACHE_LAMBDA {
    unrolled<0, kVectors>([&]<size_t v>() VLCACHE_LAMBDA {
      const U32Vec codes = w.template get<v, kQuad>();
      unrolled<0, kRows>([&]<size_t r>()
                             VLCACHE_LAMBDA { to[v][r] = word_dot(to[v][r], codes, x[r].codes + 8 * kQuad); });
    });
  });
}

// acc[v][r] += the products of a unit's weights w with kRows rows, for kVectors vectors of outputs and one of the
// unit's kBands groups. What codes stand for: scale * code + min.
template <Dots kDots, size_t kBand, size_t kBands, typename Weights, size_t kRows, size_t kVectors>
HWY_INLINE void add_band(const Weights& w, const CodedUnit (&x)[kRows], const UnitSums (&sums)[kRows],
                         F32Vec (&acc)[kVectors][kRows]) {
  const F32Tag d;
  constexpr size_t kOfBand = static_cast<size_t>(kQuads) / kBands;
  I32Vec products[kVectors][kRows];
  unit_dots<kDots, kBand * kOfBand, (kBand + 1) * kOfBand>(w, x, sums, kBand, products);
  unrolled<0, kVectors>([&]<size_t v>() VLCACHE_LAMBDA {
    const F32Vec scale = w.template scale<v>(kBand);
    unrolled<0, kRows>([&]<size_t r>() VLCACHE_LAMBDA {
      const F32Vec scaled = hn::Mul(hn::ConvertTo(d, products[v][r]), hn::Set(d, sums[r].scale));
      acc[v][r] = hn::MulAdd(scaled, scale, acc[v][r]);
    });
    if constexpr (Weights::kHasMin) {
      const F32Vec min = w.template min<v>(kBand);
      unrolled<0, kRows>(
          [&]<size_t r>() VLCACHE_LAMBDA { acc[v][r] = hn::MulAdd(min, hn::Set(d, sums[r].sums[kBand]), acc[v][r]); });
    }
  });
}

// kRows rows of one group, from a unit's first one.
template <size_t kRows, typename T>
HWY_INLINE const T (&rows_of(const T* first))[kRows] {
  return *reinterpret_cast<const T(*)[kRows]>(first);
}

}  // namespace vlcache::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // VLCACHE_OPS_CPU_QUANT_INL_H_
