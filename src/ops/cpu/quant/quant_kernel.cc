// A few rows with the codes of quantised panels, on any vector unit: codes become bytes in dwords of four inputs, one
// output a lane.
#include "ops/cpu/quant/quant_kernel.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "base/error.h"
#include "ops/cpu/simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/quant/quant_kernel.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "ops/cpu/quant/quant-inl.h"

HWY_BEFORE_NAMESPACE();
namespace vlcache::cpu::HWY_NAMESPACE {

// ---- rows as integers -----------------------------------------------------------------------------------------------

// How a unit is coded.
struct UnitCode {
  float largest;   // integer; 128 * 127, so that hi = round(v / 128) fits a byte
  int offset;      // code_offset of the form
  bool by_halves;  // groups are halves of a unit
  bool one_byte;
  explicit UnitCode(const CodedAs& as)
      : largest(as.bits == ActivationBits::k15 ? 16256.0f : 127.0f),
        offset(code_offset(as.form)),
        by_halves(as.form.group < kUnit),
        one_byte(as.one_byte) {}
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
    sums.starts[half] = -totals[half] * code.offset;
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

void code_bytes(const Tensor& x, const CodedAs& as, const CodedRows& rows) {
  const UnitCode code(as);
  x.dtype == DType::kF32 ? code_typed<true, float>(x, code, rows) : code_typed<true, bf16>(x, code, rows);
}
void code_without_vnni(const Tensor& x, const CodedAs& as, const CodedRows& rows) {
  if (by_pairs(as.form.bits, as.form.table != CodeTable::kLinear) && !as.words) return code_bytes(x, as, rows);
  const UnitCode code(as);
  x.dtype == DType::kF32 ? code_typed<false, float>(x, code, rows) : code_typed<false, bf16>(x, code, rows);
}

// ---- dot products ---------------------------------------------------------------------------------------------------

// Weights of a unit and some vectors of outputs, read as they are asked for: registers do not hold all of them.
// kByLine: each line that is read fetches a later one.
template <int kBits, bool kTable, bool kByLine, typename Scales>
struct PartWeights {
  static constexpr bool kHasMin = Scales::kHasMin;
  const std::byte* codes;  // of the unit
  size_t first_output;
  const TableBytes& table;
  const Scales& scales;
  template <size_t v>
  HWY_INLINE size_t output() const {
    return first_output + v * hn::MaxLanes(F32Tag());
  }
  template <size_t v, size_t kQuad>
  HWY_INLINE U32Vec get() const {
    constexpr size_t kOfLine = 64 / sizeof(F32Vec), kQuadsOfLine = 8 / kBits;
    if constexpr (kByLine && v % kOfLine == 0 && kQuad % kQuadsOfLine == 0) {
      prefetch_by_line<kBits>(codes + (kQuad / kQuadsOfLine * kPanel + output<v>()) * sizeof(uint32_t));
    }
    return Quads<kBits, kTable>(codes, output<v>(), table).template get<kQuad>();
  }
  template <size_t v>
  HWY_INLINE F32Vec scale(size_t band) const {
    return scales.scale(band * kPanel + output<v>());
  }
  template <size_t v>
  HWY_INLINE F32Vec min(size_t band) const {
    return scales.min(band * kPanel + output<v>());
  }
};

// The panel with kRows rows. kBands: groups of a unit.
template <Dots kDots, int kBits, bool kTable, size_t kRows, size_t kBands, typename Scales>
HWY_NOINLINE void panel_of_rows(const QuantPanelArgs& args) {
  const F32Tag d;
  const QuantLayout& layout = args.layout;
  const TableBytes table(layout.form);
  constexpr size_t kLanes = hn::MaxLanes(F32Tag());
  CHECK(args.rows.group == kRows);
  const int64_t first = args.rows.at(args.first_row, 0);
  const CodedUnit* x = args.rows.units + first;
  const UnitSums* sums = args.rows.sums + first;
  // Without VNNI, for codes that fill their lines.
  constexpr bool kByLine = kLanes == 8 && (kBits == 4 || kBits == 8) && kDots != Dots::kHalves;
  // Beside each other; all, if their sums fit into the registers: a unit's lines are then read in their order.
  constexpr size_t kVectors = kByLine && kBits == 8 ? 8 : kLanes >= 8 && kRows <= 2 ? 4 / kRows : 1;
  F32Vec acc[kLanes64 / kVectors][kVectors][kRows];
#pragma GCC unroll 16  // here and below: all of acc in registers
  for (size_t i = 0; i < kRows * kLanes64; ++i)
    acc[i / kRows / kVectors][i / kRows % kVectors][i % kRows] = hn::Zero(d);
  Scales scales(layout);
  // A part's bytes of a unit, in whole lines, with one for the scales.
  constexpr size_t kAhead = (static_cast<size_t>(kBits * kUnit * kPanel / 8) * kVectors / kLanes64 + 127) / 64 * 64;
  const int64_t code_bytes = layout.unit_bytes();
  int64_t unit = 0;
  for (BlockWalk walk(layout, args.panel); walk.next();) {
    scales.next(walk.block());
    const std::byte* codes = walk.block().units;
    for (const std::byte* line = walk.block().scales; kByLine && line < codes; line += 64)
      prefetch_by_line<kBits>(line);
    for (const int64_t end = unit + walk.block().n_units; unit < end;
         ++unit, codes += code_bytes, x += kRows, sums += kRows) {
#pragma GCC unroll 8
      for (size_t part = 0; part < kLanes64 / kVectors; ++part) {
        const PartWeights<kBits, kTable, kByLine, Scales> w{codes, part * kVectors * kLanes, table, scales};
        for (size_t line = part * kAhead; line < (part + 1) * kAhead && !kByLine; line += 64) {
          kBits == 8 && kLanes == 8 ? prefetch_near(codes + line) : prefetch(codes + line);
        }
        add_band<kDots, 0, kBands>(w, rows_of<kRows>(x), rows_of<kRows>(sums), acc[part]);
        if constexpr (kBands == 2) add_band<kDots, 1, kBands>(w, rows_of<kRows>(x), rows_of<kRows>(sums), acc[part]);
      }
    }
  }
#pragma GCC unroll 16
  for (size_t i = 0; i < kRows * kLanes64; ++i) {
    const F32Vec sum = acc[i / kRows / kVectors][i / kRows % kVectors][i % kRows];
    hn::StoreU(sum, d, args.acc + i % kRows * kPanel + i / kRows * kLanes);
  }
}

template <Dots kDots, int kBits, bool kTable, size_t kBands, typename Scales>
HWY_INLINE void panel_with(const QuantPanelArgs& args) {
  if (args.n_rows == 1) return panel_of_rows<kDots, kBits, kTable, 1, kBands, Scales>(args);
  if constexpr (hn::MaxLanes(F32Tag()) == 16 && kDots != Dots::kWords) {  // quant_rows
    if (args.n_rows == 2) return panel_of_rows<kDots, kBits, kTable, 2, kBands, Scales>(args);
    if (args.n_rows == 3) return panel_of_rows<kDots, kBits, kTable, 3, kBands, Scales>(args);
    panel_of_rows<kDots, kBits, kTable, 4, kBands, Scales>(args);
  }
}

// The scales of the forms that the quantiser makes are known when compiling.
template <Dots kDots, int kBits, bool kTable, size_t kBands>
HWY_INLINE void panel_of(const QuantPanelArgs& args) {
  if constexpr (!kTable && kBands == 1 && kBits != 5) {
    using Own = std::conditional_t<kBits == 8, ScalesOf<ScaleKind::kF16, MinKind::kNone>,
                                   ScalesOf<ScaleKind::kU8OfRow, MinKind::kU8>>;
    if (Own::fits(args.layout.form)) return panel_with<kDots, kBits, kTable, kBands, Own>(args);
  }
  if constexpr (!(kBits == 8 && kBands == 2) && !(kBits == 6 && kBands == 1)) {
    return panel_with<kDots, kBits, kTable, kBands, AnyScales>(args);
  }
  CHECK(false);  // has_few_rows_kernel
}

template <Dots kDots>
HWY_INLINE void panel(const QuantPanelArgs& args) {
  for_layout(args.layout, [&]<int kBits, bool kTable, size_t kBands>() VLCACHE_LAMBDA {
    constexpr bool kPairs = kDots == Dots::kWords && by_pairs(kBits, kTable);
    panel_of<kPairs ? Dots::kPairHalves : kDots, kBits, kTable, kBands>(args);
  });
}

void quant_without_vnni(const QuantPanelArgs& args) { panel<Dots::kWords>(args); }
void quant_by_vnni(const QuantPanelArgs& args) {
#if defined(VLCACHE_BYTE_DOTS)
  panel<Dots::kHalves>(args);
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

HWY_EXPORT(code_without_vnni);
HWY_EXPORT(code_bytes);
HWY_EXPORT(quant_without_vnni);
HWY_EXPORT(quant_by_vnni);

}  // namespace

void code_rows(QuantIsa isa, const Tensor& x, const CodedAs& as, const CodedRows& rows) {
  if (isa.byte_dots) return VLCACHE_SIMD(isa.isa, code_bytes)(x, as, rows);
  VLCACHE_SIMD(isa.isa, code_without_vnni)(x, as, rows);
}

void quant_panel(QuantIsa isa, const QuantPanelArgs& args) {
  if (!has_few_rows_kernel(args.layout.form)) return quant_groups(isa, args, false);
  if (isa.byte_dots) return VLCACHE_SIMD(isa.isa, quant_by_vnni)(args);
  VLCACHE_SIMD(isa.isa, quant_without_vnni)(args);
}

}  // namespace vlcache::cpu
#endif
