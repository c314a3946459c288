// The kernels of quantised panels on any vector unit. Scales are taken to f32 a block at a time; codes become bytes in
// dwords of four inputs, one output a lane.
#include "ops/cpu/quant_kernel.h"

#include <hwy/cache_control.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "ops/cpu/simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/quant_kernel.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "ops/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace vlcache::cpu::HWY_NAMESPACE {

using I32Tag = hn::RebindToSigned<F32Tag>;
using I32Vec = hn::Vec<I32Tag>;
using U32Tag = hn::RebindToUnsigned<F32Tag>;
using U32Vec = hn::Vec<U32Tag>;

constexpr size_t kLanes64 = 64 / hn::MaxLanes(F32Tag());  // vectors of a panel's outputs

// Bytes ahead to prefetch, into L2: measured on an Emerald Rapids with 4 bits and one row, 22 ms for the matrices of
// the 1.1B shape instead of 23 with 4096 bytes ahead into L1, and 25 with 2048.
constexpr size_t kAheadBytes = 5120;

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
  HWY_ALIGN float factors[kPanel], min_factors[kPanel];  // of byte scales and minima, from `shared`
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
        hn::Store(load_f16(block.shared + (kPanel + i) * 2), d, out.min_factors + i);
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
      hn::Store(hn::Neg(hn::Mul(hn::Load(d, out.min_factors + output), load_bytes<uint8_t>(min))), d, out.mins + i);
    }
    if constexpr (kMin == MinKind::kZeroPoint) {
      hn::Store(hn::Neg(hn::Mul(s, load_bytes<uint8_t>(min))), d, out.mins + i);
    }
  }
}

using ReadScales = void (*)(const QuantBlock& block, int64_t n, BlockScales& out);

template <ScaleKind kScale>
ReadScales scales_reader_of(MinKind min) {
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
ReadScales scales_reader(const QuantForm& form) {
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

// Calls body.operator()<quad>() for the quads [kBegin, kEnd).
template <size_t kBegin, size_t kEnd, typename Body>
HWY_INLINE void for_quads(const Body& body) {
  if constexpr (kBegin < kEnd) {
    body.template operator()<kBegin>();
    for_quads<kBegin + 1, kEnd>(body);
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

// ---- rows as integers -----------------------------------------------------------------------------------------------

constexpr float kLargest = 16256.0f;  // 128 * 127: hi = round(v / 128) fits a byte

template <bool kBytes, typename T>
HWY_INLINE void code_unit(const T* x, size_t n, CodedUnit& unit, UnitSums& sums) {
  const F32Tag d;
  const I32Tag di;
  const size_t lanes = f32_lanes();
  HWY_ALIGN float values[kUnit];
  F32Vec most = hn::Zero(d), none = hn::Zero(d);
  for (size_t i = 0; i < kUnit; i += lanes) {
    const F32Vec v = i + lanes <= n ? load_f32(x + i) : i < n ? load_f32(x + i, n - i) : hn::Zero(d);
    most = hn::Max(most, hn::Abs(v));
    none = hn::MulAdd(v, hn::Zero(d), none);  // NaN if a value is not finite
    hn::Store(v, d, values + i);
  }
  const float largest = hn::GetLane(hn::MaxOfLanes(d, most));
  const bool finite = hn::GetLane(hn::SumOfLanes(d, none)) == 0.0f;
  sums = {.scale = finite ? largest / kLargest : std::numeric_limits<float>::quiet_NaN(), .sums = {0, 0}, .unused = 0};
  // Below the normal numbers, a product with the reciprocal would overflow: such rows are zero.
  const bool zero = !finite || sums.scale < std::numeric_limits<float>::min();
  if (finite && zero) sums.scale = 0.0f;
  const F32Vec reciprocal = hn::Set(d, zero ? 0.0f : kLargest / largest);
  HWY_ALIGN int32_t whole[kUnit] = {};
  for (size_t half = 0; half < 2; ++half) {
    I32Vec sum = hn::Zero(di);
    for (size_t i = half * kUnit / 2; i < (half + 1) * kUnit / 2; i += lanes) {
      const I32Vec v = hn::NearestInt(hn::Mul(zero ? hn::Zero(d) : hn::Load(d, values + i), reciprocal));
      sum = hn::Add(sum, v);
      if constexpr (kBytes) {
        const hn::Rebind<int8_t, F32Tag> d8;
        int8_t* bytes = reinterpret_cast<int8_t*>(unit.codes) + i;
        const I32Vec high = hn::ShiftRight<7>(hn::Add(v, hn::Set(di, 64)));
        hn::StoreU(hn::DemoteTo(d8, high), d8, bytes);
        hn::StoreU(hn::DemoteTo(d8, hn::Sub(v, hn::ShiftLeft<7>(high))), d8, bytes + kUnit);
      } else {
        hn::Store(v, di, whole + i);
      }
    }
    sums.sums[half] = hn::GetLane(hn::SumOfLanes(di, sum));
  }
  if constexpr (!kBytes) {
    int16_t* words = reinterpret_cast<int16_t*>(unit.codes);
    for (size_t i = 0; i < kUnit; i += 4) {
      words[i] = static_cast<int16_t>(whole[i]), words[i + 1] = static_cast<int16_t>(whole[i + 2]);
      words[i + 2] = static_cast<int16_t>(whole[i + 1]), words[i + 3] = static_cast<int16_t>(whole[i + 3]);
    }
  }
}

template <bool kBytes, typename T>
HWY_INLINE void code_typed(const Tensor& x, const CodedRows& rows) {
  for (int64_t i = 0; i < rows.n_rows; ++i) {
    const T* row = x.row<T>(i);
    for (int64_t u = 0; u < rows.n_units; ++u) {
      const int64_t at = i * rows.n_units + u;
      code_unit<kBytes>(row + u * kUnit, static_cast<size_t>(std::min(kUnit, x.row_size() - u * kUnit)), rows.units[at],
                        rows.sums[at]);
    }
  }
}

void code_words(const Tensor& x, const CodedRows& rows) {
  x.dtype == DType::kF32 ? code_typed<false, float>(x, rows) : code_typed<false, bf16>(x, rows);
}
void code_bytes(const Tensor& x, const CodedRows& rows) {
  x.dtype == DType::kF32 ? code_typed<true, float>(x, rows) : code_typed<true, bf16>(x, rows);
}

// ---- dot products ---------------------------------------------------------------------------------------------------

#if HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR
#define VLCACHE_BYTE_DOTS 1
// sum + the four products of each lane: bytes of w without a sign, the four signed bytes of x from kAt on. Highway
// 1.0.3 has neither a word for VNNI nor a target with it. The operand "m" says what is read; "r" keeps the compiler
// from making a register of each address.
template <size_t kAt>
HWY_INLINE I32Vec byte_dot(I32Vec sum, U32Vec w, const CodedUnit& x) {
#if HWY_TARGET == HWY_AVX2
  uint32_t bytes;
  std::memcpy(&bytes, x.codes + kAt, 4);
  const U32Vec four = hn::Set(U32Tag(), bytes);
  asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum.raw) : "x"(w.raw), "x"(four.raw));
#else
  asm("vpdpbusd %c4(%2)%{1to16%}, %1, %0" : "+v"(sum.raw) : "v"(w.raw), "r"(x.codes), "m"(x), "i"(kAt));
#endif
  return sum;
}
#endif

// The same with words of x, in the order 0, 2, 1, 3.
HWY_INLINE I32Vec word_dot(I32Vec sum, U32Vec w, const std::byte* x) {
  const U32Tag d;
  const U32Vec even = hn::And(w, hn::Set(d, 0x00ff00ffu)), odd = hn::And(hn::ShiftRight<8>(w), hn::Set(d, 0x00ff00ffu));
#if HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR
  const hn::Repartition<int16_t, F32Tag> d16;
  const uint32_t* pairs = reinterpret_cast<const uint32_t*>(x);
  I32Vec rest = hn::Zero(I32Tag());  // not used on x86, where lanes stay in their order
  sum = hn::ReorderWidenMulAccumulate(I32Tag(), hn::BitCast(d16, even), hn::BitCast(d16, hn::Set(d, pairs[0])), sum,
                                      rest);
  return hn::ReorderWidenMulAccumulate(I32Tag(), hn::BitCast(d16, odd), hn::BitCast(d16, hn::Set(d, pairs[1])), sum,
                                       rest);
#else
  const I32Tag di;
  const int16_t* v = reinterpret_cast<const int16_t*>(x);
  const U32Vec byte = hn::Set(d, 0xffu);
  const auto add = [&](U32Vec bytes, int16_t value) {
    sum = hn::Add(sum, hn::Mul(hn::BitCast(di, hn::And(bytes, byte)), hn::Set(di, int32_t{value})));
  };
  add(even, v[0]), add(hn::ShiftRight<16>(even), v[1]), add(odd, v[2]), add(hn::ShiftRight<16>(odd), v[3]);
  return sum;
#endif
}

// The sums of a vector of outputs over quads [kBegin, kEnd) of one unit and a row: what it is short of, `less`, is the
// offset of codes times the sum of x.
template <bool kBytes, size_t kBegin, size_t kEnd, typename Codes>
HWY_INLINE I32Vec unit_dot(const Codes& codes, const CodedUnit& x, int32_t less) {
  const I32Tag di;
#if defined(VLCACHE_BYTE_DOTS)
  if constexpr (kBytes) {
    I32Vec high = hn::Zero(di), low = hn::Set(di, -less);
    for_quads<kBegin, kEnd>([&]<size_t kQuad>() HWY_ATTR {
      high = byte_dot<4 * kQuad>(high, codes[kQuad], x);
      low = byte_dot<kUnit + 4 * kQuad>(low, codes[kQuad], x);
    });
    return hn::Add(hn::ShiftLeft<7>(high), low);
  }
#endif
  I32Vec sum = hn::Set(di, -less);
  for_quads<kBegin, kEnd>([&]<size_t kQuad>() HWY_ATTR { sum = word_dot(sum, codes[kQuad], x.codes + 8 * kQuad); });
  return sum;
}

// The panel with kRows rows. kBands: groups of a unit.
template <bool kBytes, int kBits, bool kTable, size_t kRows, size_t kBands>
HWY_NOINLINE void panel_of_rows(const QuantPanelArgs& args) {
  const F32Tag d;
  const QuantLayout& layout = args.layout;
  const TableBytes table(layout.form);
  const int offset = code_offset(layout.form);
  const ReadScales read = scales_reader(layout.form);
  constexpr size_t kLanes = hn::MaxLanes(F32Tag());
  const int64_t n_units = args.rows.n_units, first = args.first_row * n_units;
  const CodedUnit* x = args.rows.units + first;
  const UnitSums* sums = args.rows.sums + first;
  F32Vec acc[kRows][kLanes64];
#pragma GCC unroll 4  // here and below: all of acc in registers
  for (size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (size_t v = 0; v < kLanes64; ++v) acc[r][v] = hn::Zero(d);
  }
  BlockScales scales;
  // A vector's part of the bytes of a unit, in whole lines, with one for the scales.
  constexpr size_t kAhead = (static_cast<size_t>(kBits * kUnit * kPanel / 8) / kLanes64 + 127) / 64 * 64;
  const int64_t code_bytes = layout.unit_bytes();
  int64_t unit = 0;
  for (BlockWalk walk(layout, args.panel); walk.next();) {
    read(walk.block(), int64_t{kBands} * kPanel, scales);
    const std::byte* codes = walk.block().units;
    for (const int64_t end = unit + walk.block().n_units; unit < end; ++unit, codes += code_bytes) {
#pragma GCC unroll 8
      for (size_t v = 0; v < kLanes64; ++v) {
        const Quads<kBits, kTable> quads(codes, v * kLanes, table);
        U32Vec w[kQuads];
        for_quads<0, kQuads>([&]<size_t kQuad>() HWY_ATTR { w[kQuad] = quads.template get<kQuad>(); });
        for (size_t line = v * kAhead; line < (v + 1) * kAhead; line += 64)
          __builtin_prefetch(codes + kAheadBytes + line, 0, 2);
#pragma GCC unroll 4
        for (size_t r = 0; r < kRows; ++r) {
          const int64_t at = static_cast<int64_t>(r) * n_units + unit;
          const F32Vec x_scale = hn::Set(d, sums[at].scale);
          const auto add = [&](I32Vec products, size_t band, int32_t sum) HWY_ATTR {
            const F32Vec scaled = hn::Mul(hn::ConvertTo(d, products), x_scale);
            acc[r][v] = hn::MulAdd(scaled, hn::Load(d, scales.scales + band * kPanel + v * kLanes), acc[r][v]);
            const F32Vec x_sum = hn::Set(d, static_cast<float>(sum) * sums[at].scale);
            acc[r][v] = hn::MulAdd(hn::Load(d, scales.mins + band * kPanel + v * kLanes), x_sum, acc[r][v]);
          };
          const int32_t low = sums[at].sums[0], high = sums[at].sums[1];
          if constexpr (kBands == 1) {
            add(unit_dot<kBytes, 0, kQuads>(w, x[at], offset * (low + high)), 0, low + high);
          } else {
            add(unit_dot<kBytes, 0, kQuads / 2>(w, x[at], offset * low), 0, low);
            add(unit_dot<kBytes, kQuads / 2, kQuads>(w, x[at], offset * high), 1, high);
          }
        }
      }
    }
  }
#pragma GCC unroll 4
  for (size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (size_t v = 0; v < kLanes64; ++v) hn::StoreU(acc[r][v], d, args.acc + r * kPanel + v * kLanes);
  }
}

template <bool kBytes, int kBits, bool kTable, size_t kBands>
HWY_INLINE void panel_of(QuantPanelArgs args) {
  constexpr int64_t kMostRows = hn::MaxLanes(F32Tag()) == 16 ? kQuantRows : 1;  // rows whose sums stay in registers
  for (const int64_t end = args.first_row + args.n_rows; args.first_row < end;) {
    switch (args.n_rows = std::min(kMostRows, end - args.first_row)) {
      case 1:
        panel_of_rows<kBytes, kBits, kTable, 1, kBands>(args);
        break;
      case 2:
        if constexpr (kMostRows >= 2) panel_of_rows<kBytes, kBits, kTable, 2, kBands>(args);
        break;
      case 3:
        if constexpr (kMostRows >= 3) panel_of_rows<kBytes, kBits, kTable, 3, kBands>(args);
        break;
      default:
        if constexpr (kMostRows >= 4) panel_of_rows<kBytes, kBits, kTable, 4, kBands>(args);
    }
    args.first_row += args.n_rows, args.acc += args.n_rows * kPanel;
  }
}

template <bool kBytes>
HWY_INLINE void panel(const QuantPanelArgs& args) {
  for_form(args.layout.form, [&]<int kBits, bool kTable>() HWY_ATTR {
    if (args.layout.bands() == 1) return panel_of<kBytes, kBits, kTable, 1>(args);
    panel_of<kBytes, kBits, kTable, 2>(args);
  });
}

void quant_by_words(const QuantPanelArgs& args) { panel<false>(args); }
void quant_by_bytes(const QuantPanelArgs& args) {
#if defined(VLCACHE_BYTE_DOTS)
  panel<true>(args);
#else
  (void)args;
  CHECK(false);
#endif
}
#undef VLCACHE_BYTE_DOTS

// ---- panels as values -----------------------------------------------------------------------------------------------

// kBrain: pairs of bf16, else f32.
template <int kBits, bool kTable, bool kBrain>
HWY_NOINLINE void dequantise_typed(const QuantLayout& layout, const std::byte* panel, std::byte* out) {
  const F32Tag d;
  const U32Tag du;
  const I32Tag di;
  constexpr size_t kLanes = hn::MaxLanes(F32Tag());
  const TableBytes table(layout.form);
  const I32Vec offset = hn::Set(di, code_offset(layout.form));
  const bool has_min = layout.form.min != MinKind::kNone;
  const ReadScales read = scales_reader(layout.form);
  const size_t bands = static_cast<size_t>(layout.bands());
  BlockScales scales;
  std::byte* to = out;
  const int64_t code_bytes = layout.unit_bytes();
  for (BlockWalk walk(layout, panel); walk.next();) {
    read(walk.block(), layout.bands() * kPanel, scales);
    const std::byte* codes = walk.block().units;
    for (int64_t unit = 0; unit < walk.block().n_units; ++unit, codes += code_bytes) {
      for (size_t v = 0; v < kLanes64; ++v) {
        const Quads<kBits, kTable> quads(codes, v * kLanes, table);
        for_quads<0, kQuads>([&]<size_t kQuad>() HWY_ATTR {
          const U32Vec four = quads.template get<kQuad>();
          const size_t at = kQuad * bands / kQuads * kPanel + v * kLanes;
          const F32Vec s = hn::Load(d, scales.scales + at), m = hn::Load(d, scales.mins + at);
          const auto value = [&](U32Vec byte) HWY_ATTR {
            const F32Vec c = hn::ConvertTo(d, hn::Sub(hn::BitCast(di, byte), offset));
            return has_min ? hn::MulAdd(s, c, m) : hn::Mul(s, c);
          };
          const U32Vec low = hn::Set(du, 0xffu);
          const F32Vec w0 = value(hn::And(four, low)), w1 = value(hn::And(hn::ShiftRight<8>(four), low));
          const F32Vec w2 = value(hn::And(hn::ShiftRight<16>(four), low)), w3 = value(hn::ShiftRight<24>(four));
          if constexpr (kBrain) {
            uint32_t* pairs = reinterpret_cast<uint32_t*>(to) + kQuad * 2 * kPanel + v * kLanes;
            const auto pair = [&](F32Vec a, F32Vec b) HWY_ATTR {
              return hn::Or(hn::BitCast(du, bf16_bits(a)), hn::ShiftLeft<16>(hn::BitCast(du, bf16_bits(b))));
            };
            hn::StoreU(pair(w0, w1), du, pairs), hn::StoreU(pair(w2, w3), du, pairs + kPanel);
          } else {
            float* values = reinterpret_cast<float*>(to) + kQuad * 4 * kPanel + v * kLanes;
            hn::StoreU(w0, d, values), hn::StoreU(w1, d, values + kPanel);
            hn::StoreU(w2, d, values + 2 * kPanel), hn::StoreU(w3, d, values + 3 * kPanel);
          }
        });
      }
      to += kUnit * kPanel * (kBrain ? 2 : 4);
    }
  }
}

void dequantise_bf16(const QuantLayout& layout, const std::byte* panel, std::byte* out) {
  for_form(layout.form,
           [&]<int kBits, bool kTable>() HWY_ATTR { dequantise_typed<kBits, kTable, true>(layout, panel, out); });
}
void dequantise_f32(const QuantLayout& layout, const std::byte* panel, std::byte* out) {
  for_form(layout.form,
           [&]<int kBits, bool kTable>() HWY_ATTR { dequantise_typed<kBits, kTable, false>(layout, panel, out); });
}

}  // namespace vlcache::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace vlcache::cpu {
namespace {

HWY_EXPORT(code_words);
HWY_EXPORT(code_bytes);
HWY_EXPORT(quant_by_words);
HWY_EXPORT(quant_by_bytes);
HWY_EXPORT(dequantise_bf16);
HWY_EXPORT(dequantise_f32);

}  // namespace

void code_rows(QuantIsa isa, const Tensor& x, const CodedRows& rows) {
  if (isa.byte_dots) return VLCACHE_SIMD(isa.isa, code_bytes)(x, rows);
  VLCACHE_SIMD(isa.isa, code_words)(x, rows);
}

void quant_panel(QuantIsa isa, const QuantPanelArgs& args) {
  if (isa.byte_dots) return VLCACHE_SIMD(isa.isa, quant_by_bytes)(args);
  VLCACHE_SIMD(isa.isa, quant_by_words)(args);
}

void dequantise_panel(Isa isa, const QuantLayout& layout, const std::byte* panel, DType dtype, std::byte* out) {
  if (dtype == DType::kBF16) return VLCACHE_SIMD(isa, dequantise_bf16)(layout, panel, out);
  CHECK(dtype == DType::kF32);
  VLCACHE_SIMD(isa, dequantise_f32)(layout, panel, out);
}

}  // namespace vlcache::cpu
#endif
