// Many rows with the codes of quantised panels: the codes of 16 outputs and a unit become bytes in registers once for
// all rows, whose sums are in L1.
#include <algorithm>

#include "base/error.h"
#include "ops/cpu/quant/quant_kernel.h"
#include "ops/cpu/simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/quant/quant_rows.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "ops/cpu/quant/quant-inl.h"

HWY_BEFORE_NAMESPACE();
namespace vlcache::cpu::HWY_NAMESPACE {

// A vector of outputs and a unit: codes as bytes, and where its scales and minima are, the next group's kPanel further.
struct UnitWeights {
  static constexpr bool kHasMin = true;
  U32Vec codes[kQuads];
  const float *scales, *mins;
  template <size_t v, size_t kQuad>
  HWY_INLINE U32Vec get() const {
    return codes[kQuad];
  }
  template <size_t v>
  HWY_INLINE F32Vec scale(size_t band) const {
    return hn::Load(F32Tag(), scales + band * kPanel);
  }
  template <size_t v>
  HWY_INLINE F32Vec min(size_t band) const {
    return hn::Load(F32Tag(), mins + band * kPanel);
  }
};

// The products with kRows rows beside each other, into acc[row][64].
template <Dots kDots, size_t kRows, size_t kBands>
HWY_INLINE void add_rows(const CodedUnit* units, const UnitSums* of_units, const UnitWeights& w, float* acc) {
  const F32Tag d;
  const auto& x = rows_of<kRows>(units);
  const auto& sums = rows_of<kRows>(of_units);
  F32Vec sum[1][kRows];
  unrolled<0, kRows>([&]<size_t r>() VLCACHE_LAMBDA { sum[0][r] = hn::Load(d, acc + r * kPanel); });
  add_band<kDots, 0, kBands>(w, x, sums, sum);
  if constexpr (kBands == 2) add_band<kDots, 1, kBands>(w, x, sums, sum);
  unrolled<0, kRows>([&]<size_t r>() VLCACHE_LAMBDA { hn::Store(sum[0][r], d, acc + r * kPanel); });
}

// Rows at once: on 512 bits a whole group, because a few rows' sums wait for each other (a scheduler's window of 97
// holds four rows' products and what follows them). Fewer than five, which are quant_panel's, come row by row; so do
// all by words, whose sums wait for an addition alone.
template <Dots kDots>
constexpr size_t kMostTogether = hn::MaxLanes(F32Tag()) == 16 && kDots != Dots::kWords ? kMostGrouped : 1;
constexpr size_t kLeastTogether = 5;

// The products with the n rows of a group.
template <Dots kDots, size_t kBands, size_t kTogether>
HWY_INLINE void add_group(const CodedUnit* x, const UnitSums* sums, int64_t n, const UnitWeights& w, float* acc) {
  constexpr size_t kNext = kTogether > kLeastTogether ? kTogether - 1 : 1;
  if constexpr (kTogether > 1) {
    if (n != kTogether) return add_group<kDots, kBands, kNext>(x, sums, n, w, acc);
  }
  for (; n > 0; n -= kTogether, x += kTogether, sums += kTogether, acc += kTogether * kPanel) {
    add_rows<kDots, kTogether, kBands>(x, sums, w, acc);
  }
}

// The products of a vector of outputs with all rows and a unit.
template <Dots kDots, size_t kBands>
HWY_INLINE void add_unit(const QuantPanelArgs& args, int64_t unit, const UnitWeights& w, float* acc) {
  const CodedRows& rows = args.rows;
  for (int64_t first = 0; first < args.n_rows; first += rows.group, acc += rows.group * kPanel) {
    const int64_t at = rows.at(args.first_row + first, unit), n = std::min(rows.group, args.n_rows - first);
    add_group<kDots, kBands, kMostTogether<kDots>>(rows.units + at, rows.sums + at, n, w, acc);
  }
}

template <Dots kDots, int kBits, bool kTable, size_t kBands>
HWY_NOINLINE void panel_of_groups(const QuantPanelArgs& args) {
  constexpr size_t kLanes = hn::MaxLanes(F32Tag());
  const QuantLayout& layout = args.layout;
  const TableBytes table(layout.form);
  const ReadScales read = scales_reader(layout.form);
  std::fill_n(args.acc, args.n_rows * kPanel, 0.0f);
  BlockScales scales;
  constexpr size_t kAhead = (static_cast<size_t>(kBits * kUnit * kPanel / 8) / kLanes64 + 127) / 64 * 64;
  const int64_t code_bytes = layout.unit_bytes();
  int64_t unit = 0;
  for (BlockWalk walk(layout, args.panel); walk.next();) {
    read(walk.block(), int64_t{kBands} * kPanel, scales);
    const std::byte* codes = walk.block().units;
    for (const int64_t end = unit + walk.block().n_units; unit < end; ++unit, codes += code_bytes) {
      for (size_t v = 0; v < kLanes64; ++v) {
        const Quads<kBits, kTable> quads(codes, v * kLanes, table);
        UnitWeights w{.scales = scales.scales + v * kLanes, .mins = scales.mins + v * kLanes};
        unrolled<0, kQuads>([&]<size_t kQuad>() VLCACHE_LAMBDA { w.codes[kQuad] = quads.template get<kQuad>(); });
        for (size_t line = v * kAhead; line < (v + 1) * kAhead; line += 64) prefetch(codes + line);
        add_unit<kDots, kBands>(args, unit, w, args.acc + v * kLanes);
      }
    }
  }
}

template <Dots kDots>
HWY_INLINE void groups(const QuantPanelArgs& args) {
  for_layout(args.layout, [&]<int kBits, bool kTable, size_t kBands>()
                              VLCACHE_LAMBDA { panel_of_groups<kDots, kBits, kTable, kBands>(args); });
}

void rows_without_vnni(const QuantPanelArgs& args, bool one_byte) {
  for_layout(args.layout, [&]<int kBits, bool kTable, size_t kBands>() VLCACHE_LAMBDA {
    if constexpr (by_pairs(kBits, kTable)) {
      one_byte ? panel_of_groups<Dots::kPairOneByte, kBits, kTable, kBands>(args)
               : panel_of_groups<Dots::kPairHalves, kBits, kTable, kBands>(args);
    } else {
      panel_of_groups<Dots::kWords, kBits, kTable, kBands>(args);
    }
  });
}
void rows_by_vnni(const QuantPanelArgs& args, bool one_byte) {
#if defined(VLCACHE_BYTE_DOTS)
  one_byte ? groups<Dots::kOneByte>(args) : groups<Dots::kHalves>(args);
#else
  (void)args, (void)one_byte;
  CHECK(false);
#endif
}

}  // namespace vlcache::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace vlcache::cpu {
namespace {

HWY_EXPORT(rows_without_vnni);
HWY_EXPORT(rows_by_vnni);

}  // namespace

void quant_groups(QuantIsa isa, const QuantPanelArgs& args, bool one_byte) {
  CHECK(args.first_row % args.rows.group == 0);
  if (isa.byte_dots) return VLCACHE_SIMD(isa.isa, rows_by_vnni)(args, one_byte);
  VLCACHE_SIMD(isa.isa, rows_without_vnni)(args, one_byte);
}

}  // namespace vlcache::cpu
#endif
