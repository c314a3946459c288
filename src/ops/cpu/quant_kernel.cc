// A few rows with the codes of quantised panels, on any vector unit: codes become bytes in dwords of four inputs, one
// output a lane.
#include "ops/cpu/quant_kernel.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "ops/cpu/simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/quant_kernel.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "ops/cpu/quant-inl.h"

HWY_BEFORE_NAMESPACE();
namespace vlcache::cpu::HWY_NAMESPACE {

// ---- rows as integers -----------------------------------------------------------------------------------------------

// How a unit is coded.
struct UnitCode {
  float largest;   // integer; 128 * 127, so that hi = round(v / 128) fits a byte
  int offset;      // code_offset of the form
  bool by_halves;  // groups are halves of a unit
  bool one_byte;
  UnitCode(const CodedAs& as, const CodedRows& rows)
      : largest(as.bits == ActivationBits::k15 ? 16256.0f : 127.0f),
        offset(code_offset(as.form)),
        by_halves(as.form.group < kUnit),
        one_byte(as.bits == ActivationBits::k8 && rows.group > 1) {}
};

template <bool kBytes, typename T>
HWY_INLINE void code_unit(const T* x, size_t n, const UnitCode& code, CodedUnit& unit, UnitSums& sums) {
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
  sums = {.scale = finite ? largest / code.largest : std::numeric_limits<float>::quiet_NaN()};
  // Below the normal numbers, a product with the reciprocal would overflow: such rows are zero.
  const bool zero = !finite || sums.scale < std::numeric_limits<float>::min();
  if (finite && zero) sums.scale = 0.0f;
  const F32Vec reciprocal = hn::Set(d, zero ? 0.0f : code.largest / largest);
  HWY_ALIGN int32_t whole[kUnit] = {};
  int32_t totals[2];
  for (size_t half = 0; half < 2; ++half) {
    I32Vec sum = hn::Zero(di);
    for (size_t i = half * kUnit / 2; i < (half + 1) * kUnit / 2; i += lanes) {
      const I32Vec v = hn::NearestInt(hn::Mul(zero ? hn::Zero(d) : hn::Load(d, values + i), reciprocal));
      sum = hn::Add(sum, v);
      if constexpr (kBytes) {
        const hn::Rebind<int8_t, F32Tag> d8;
        int8_t* bytes = reinterpret_cast<int8_t*>(unit.codes) + i;
        if (code.one_byte) {
          hn::StoreU(hn::DemoteTo(d8, v), d8, bytes);
          continue;
        }
        const I32Vec high = hn::ShiftRight<7>(hn::Add(v, hn::Set(di, 64)));
        hn::StoreU(hn::DemoteTo(d8, high), d8, bytes);
        hn::StoreU(hn::DemoteTo(d8, hn::Sub(v, hn::ShiftLeft<7>(high))), d8, bytes + kUnit);
      } else {
        hn::Store(v, di, whole + i);
      }
    }
    totals[half] = hn::GetLane(hn::SumOfLanes(di, sum));
  }
  if (!code.by_halves) totals[0] += totals[1];
  for (size_t half = 0; half < 2; ++half) {
    sums.sums[half] = static_cast<float>(totals[half]) * sums.scale;
    sums.less[half] = totals[half] * code.offset;
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
HWY_INLINE void code_typed(const Tensor& x, const UnitCode& code, const CodedRows& rows) {
  for (int64_t i = 0; i < rows.n_rows; ++i) {
    const T* row = x.row<T>(i);
    for (int64_t u = 0; u < rows.n_units; ++u) {
      const int64_t at = rows.at(i, u);
      code_unit<kBytes>(row + u * kUnit, static_cast<size_t>(std::min(kUnit, x.row_size() - u * kUnit)), code,
                        rows.units[at], rows.sums[at]);
    }
  }
}

void code_words(const Tensor& x, const CodedAs& as, const CodedRows& rows) {
  const UnitCode code(as, rows);
  x.dtype == DType::kF32 ? code_typed<false, float>(x, code, rows) : code_typed<false, bf16>(x, code, rows);
}
void code_bytes(const Tensor& x, const CodedAs& as, const CodedRows& rows) {
  const UnitCode code(as, rows);
  x.dtype == DType::kF32 ? code_typed<true, float>(x, code, rows) : code_typed<true, bf16>(x, code, rows);
}

// ---- dot products ---------------------------------------------------------------------------------------------------

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

// The sums of a vector of outputs over quads [kBegin, kEnd) of one unit and a row. less: UnitSums::less.
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
  const ReadScales read = scales_reader(layout.form);
  constexpr size_t kLanes = hn::MaxLanes(F32Tag());
  CHECK(args.rows.group == 1);
  const int64_t n_units = args.rows.n_units, first = args.rows.at(args.first_row, 0);
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
        for (size_t line = v * kAhead; line < (v + 1) * kAhead; line += 64) prefetch(codes + line);
#pragma GCC unroll 4
        for (size_t r = 0; r < kRows; ++r) {
          const int64_t at = static_cast<int64_t>(r) * n_units + unit;
          const F32Vec x_scale = hn::Set(d, sums[at].scale);
          const auto add = [&](I32Vec products, size_t band) HWY_ATTR {
            const F32Vec scaled = hn::Mul(hn::ConvertTo(d, products), x_scale);
            acc[r][v] = hn::MulAdd(scaled, hn::Load(d, scales.scales + band * kPanel + v * kLanes), acc[r][v]);
            const F32Vec x_sum = hn::Set(d, sums[at].sums[band]);
            acc[r][v] = hn::MulAdd(hn::Load(d, scales.mins + band * kPanel + v * kLanes), x_sum, acc[r][v]);
          };
          const int32_t* less = sums[at].less;
          if constexpr (kBands == 1) {
            add(unit_dot<kBytes, 0, kQuads>(w, x[at], less[0]), 0);
          } else {
            add(unit_dot<kBytes, 0, kQuads / 2>(w, x[at], less[0]), 0);
            add(unit_dot<kBytes, kQuads / 2, kQuads>(w, x[at], less[1]), 1);
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

}  // namespace vlcache::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace vlcache::cpu {
namespace {

HWY_EXPORT(code_words);
HWY_EXPORT(code_bytes);
HWY_EXPORT(quant_by_words);
HWY_EXPORT(quant_by_bytes);

}  // namespace

void code_rows(QuantIsa isa, const Tensor& x, const CodedAs& as, const CodedRows& rows) {
  if (isa.byte_dots) return VLCACHE_SIMD(isa.isa, code_bytes)(x, as, rows);
  VLCACHE_SIMD(isa.isa, code_words)(x, as, rows);
}

void quant_panel(QuantIsa isa, const QuantPanelArgs& args) {
  if (isa.byte_dots) return VLCACHE_SIMD(isa.isa, quant_by_bytes)(args);
  VLCACHE_SIMD(isa.isa, quant_by_words)(args);
}

}  // namespace vlcache::cpu
#endif
