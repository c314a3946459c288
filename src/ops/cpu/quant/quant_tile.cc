// Many rows with the codes of a block of a quantised panel, by products of bytes: codes are made bytes once for all
// rows of a tile and stay in L1, while rows come kCodedGroup at a time.
#include <algorithm>
#include <cstring>
#include <type_traits>

#include "base/error.h"
#include "ops/cpu/ahead.h"
#include "ops/cpu/quant/quant_kernel.h"
#include "ops/cpu/simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/quant/quant_tile.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "ops/cpu/quant/quant-inl.h"

HWY_BEFORE_NAMESPACE();
namespace vlcache::cpu::HWY_NAMESPACE {

constexpr size_t kLanes = hn::MaxLanes(F32Tag());

// kWords: codes as words, inputs 0 and 2 of a quad before 1 and 3, else as bytes.
template <int kBits, bool kTable, bool kWords>
HWY_NOINLINE void read_tile(const QuantLayout& layout, BlockWalk walk, const CodeTile& tile) {
  const U32Tag d;
  const TableBytes table(layout.form);
  const ReadScales read = scales_reader(layout.form);
  const int64_t n_scales = layout.bands() * kPanel;
  constexpr size_t kQuadDwords = (kWords ? 2 : 1) * static_cast<size_t>(kPanel);
  BlockScales scales;
  uint32_t* to_codes = tile.codes;
  float *to_scales = tile.scales, *to_mins = tile.mins;
  while (walk.next()) {
    read(walk.block(), n_scales, scales);
    const std::byte* codes = walk.block().units;
    for (int64_t unit = 0; unit < walk.block().n_units; ++unit, codes += layout.unit_bytes()) {
      for (size_t v = 0; v < kPanel; v += kLanes) {
        const Quads<kBits, kTable> quads(codes, v, table);
        unrolled<0, kQuads>([&]<size_t kQuad>() HWY_ATTR {
          const U32Vec four = quads.template get<kQuad>();
          uint32_t* to = to_codes + kQuad * kQuadDwords + v;
          if constexpr (kWords) {
            const U32Vec even = hn::Set(d, 0x00ff00ffu);
            hn::StoreU(hn::And(four, even), d, to), hn::StoreU(hn::And(hn::ShiftRight<8>(four), even), d, to + kPanel);
          } else {
            hn::StoreU(four, d, to);
          }
        });
      }
      std::copy_n(scales.scales, n_scales, to_scales), std::copy_n(scales.mins, n_scales, to_mins);
      to_codes += kQuads * kQuadDwords, to_scales += n_scales, to_mins += n_scales;
    }
  }
}

void read_code_tile(const QuantLayout& layout, const BlockWalk& walk, const CodeTile& tile) {
  for_form(layout.form, [&]<int kBits, bool kTable>() HWY_ATTR {
#if HWY_TARGET == HWY_AVX2
    if (tile.words) return read_tile<kBits, kTable, true>(layout, walk, tile);
#endif
    read_tile<kBits, kTable, false>(layout, walk, tile);
  });
}

#if defined(VLCACHE_BYTE_DOTS)
// Rows and vectors of outputs whose sums are in registers at once: 16 chains of 16 vectors of 512 bits, 8 of 256.
constexpr size_t kRowsAtOnce = kLanes == 16 ? 8 : 4, kVectors = 2, kOutputsAtOnce = kVectors * kLanes;
static_assert(kCodedGroup % kRowsAtOnce == 0 && kPanel % kOutputsAtOnce == 0);
using TileSums = I32Vec[kRowsAtOnce][kVectors];

// Calls body(row, vector) for each of a tile's sums.
template <typename Body>
HWY_INLINE void for_sums(const Body& body) {
  unrolled<0, kRowsAtOnce>(
      [&]<size_t r>() VLCACHE_LAMBDA { unrolled<0, kVectors>([&]<size_t v>() VLCACHE_LAMBDA { body(r, v); }); });
}

// The products of kSteps lines of codes with four bytes of x each, from `at` on: add(sum, line, codes, bytes).
template <size_t kSteps, typename Sum, typename Add>
HWY_INLINE void for_products(const uint32_t* codes, const CodedUnit* x, size_t at, Sum (&sums)[kRowsAtOnce][kVectors],
                             const Add& add) {
  unrolled<0, kSteps>([&]<size_t kStep>() VLCACHE_LAMBDA {
    U32Vec w[kVectors];
    unrolled<0, kVectors>([&]<size_t v>()
                              VLCACHE_LAMBDA { w[v] = hn::LoadU(U32Tag(), codes + kStep * kPanel + v * kLanes); });
    unrolled<0, kRowsAtOnce>([&]<size_t r>() VLCACHE_LAMBDA {
      uint32_t bytes;
      std::memcpy(&bytes, x[r].codes + at + 4 * kStep, 4);
      const U32Vec four = hn::Set(U32Tag(), bytes);
      unrolled<0, kVectors>([&]<size_t v>() VLCACHE_LAMBDA { sums[r][v] = add(sums[r][v], kStep, w[v], four); });
    });
  });
}

HWY_INLINE void begin_sums(const UnitSums* of_x, size_t band, TileSums& sums) {
  for_sums([&](size_t r, size_t v) VLCACHE_LAMBDA { sums[r][v] = hn::Set(I32Tag(), of_x[r].starts[band]); });
}

// By VNNI. kHalves: bytes of each input of x.
template <size_t kHalves>
struct ByDots {
  static constexpr size_t kQuadDwords = kPanel;  // of a quad of codes
  template <size_t kQuadsOfBand>
  HWY_INLINE static void sum(const uint32_t* codes, const CodedUnit* x, const UnitSums* of_x, size_t band,
                             TileSums& sums) {
    const size_t part = band * 4 * kQuadsOfBand;
    const auto add = [](I32Vec sum, size_t, U32Vec w, U32Vec four) VLCACHE_LAMBDA { return byte_dot(sum, w, four); };
    if constexpr (kHalves == 2) {
      for_sums([&](size_t r, size_t v) VLCACHE_LAMBDA { sums[r][v] = hn::Zero(I32Tag()); });
      for_products<kQuadsOfBand>(codes, x, part, sums, add);
      for_sums([&](size_t r, size_t v) VLCACHE_LAMBDA {
        sums[r][v] = hn::Add(hn::ShiftLeft<7>(sums[r][v]), hn::Set(I32Tag(), of_x[r].starts[band]));
      });
      for_products<kQuadsOfBand>(codes, x, kUnit + part, sums, add);
    } else {
      begin_sums(of_x, band, sums);
      for_products<kQuadsOfBand>(codes, x, part, sums, add);
    }
  }
};

#if defined(VLCACHE_PAIR_DOTS)
// Without VNNI, codes of 4 bits and x of one byte, whose products of a unit fit sums of 16 bits: 16 x 15 x 127.
struct ByPairs {
  static constexpr size_t kQuadDwords = kPanel;
  template <size_t kQuadsOfBand>
  HWY_INLINE static void sum(const uint32_t* codes, const CodedUnit* x, const UnitSums* of_x, size_t band,
                             TileSums& sums) {
    PairVec pairs[kRowsAtOnce][kVectors];
    for_products<kQuadsOfBand>(codes, x, band * 4 * kQuadsOfBand, pairs,
                               [](PairVec sum, size_t step, U32Vec w, U32Vec four) VLCACHE_LAMBDA {
                                 return step == 0 ? byte_pairs(w, four) : add_byte_pairs(sum, w, four);
                               });
    for_sums([&](size_t r, size_t v)
                 VLCACHE_LAMBDA { sums[r][v] = add_pairs(hn::Set(I32Tag(), of_x[r].starts[band]), pairs[r][v], 1); });
  }
};

// Without VNNI, other codes and x of two bytes, as words.
struct ByWords {
  static constexpr size_t kQuadDwords = 2 * kPanel;
  template <size_t kQuadsOfBand>
  HWY_INLINE static void sum(const uint32_t* codes, const CodedUnit* x, const UnitSums* of_x, size_t band,
                             TileSums& sums) {
    begin_sums(of_x, band, sums);
    for_products<2 * kQuadsOfBand>(codes, x, band * 8 * kQuadsOfBand, sums,
                                   [](I32Vec sum, size_t, U32Vec w, U32Vec two)
                                       VLCACHE_LAMBDA { return add_word_pairs(sum, w, two); });
  }
};
#endif

// Adds the products of kRowsAtOnce rows with kOutputsAtOnce outputs of a block to `acc`, rows of 64. Of the registers
// of 512 bits, half hold `acc` meanwhile, where x has one byte.
template <typename Products, size_t kBands>
HWY_NOINLINE void multiply_rows(const CodedUnit* x, const UnitSums* of_x, const CodeTile& tile, size_t output,
                                float* acc) {
  const F32Tag d;
  constexpr bool kInRegisters = kLanes == 16 && std::is_same_v<Products, ByDots<1>>;
  constexpr size_t kQuadsOfBand = static_cast<size_t>(kQuads) / kBands;
  const uint32_t* codes = tile.codes + output;
  const float *scales = tile.scales + output, *mins = tile.mins + output;
  const auto at = [&](size_t r, size_t v) VLCACHE_LAMBDA { return acc + r * kPanel + v * kLanes; };
  F32Vec held[kRowsAtOnce][kVectors];
  if constexpr (kInRegisters) for_sums([&](size_t r, size_t v) VLCACHE_LAMBDA { held[r][v] = hn::Load(d, at(r, v)); });
  for (int64_t unit = 0; unit < tile.n_units; ++unit, x += kCodedGroup, of_x += kCodedGroup) {
    for (size_t band = 0; band < kBands;
         ++band, codes += kQuadsOfBand * Products::kQuadDwords, scales += kPanel, mins += kPanel) {
      TileSums sums;
      Products::template sum<kQuadsOfBand>(codes, x, of_x, band, sums);
      for_sums([&](size_t r, size_t v) VLCACHE_LAMBDA {
        const F32Vec before = kInRegisters ? held[r][v] : hn::Load(d, at(r, v));
        const F32Vec scaled = hn::Mul(hn::ConvertTo(d, sums[r][v]), hn::Set(d, of_x[r].scale));
        const F32Vec sum = hn::MulAdd(scaled, hn::Load(d, scales + v * kLanes), before);
        held[r][v] = hn::MulAdd(hn::Load(d, mins + v * kLanes), hn::Set(d, of_x[r].sums[band]), sum);
        if constexpr (!kInRegisters) hn::Store(held[r][v], d, at(r, v));
      });
    }
  }
  if constexpr (kInRegisters) for_sums([&](size_t r, size_t v) VLCACHE_LAMBDA { hn::Store(held[r][v], d, at(r, v)); });
}

template <typename Products>
HWY_INLINE void multiply_tile(const CodeTileArgs& args) {
  const auto multiply = args.tile.bands == 1 ? multiply_rows<Products, 1> : multiply_rows<Products, 2>;
  constexpr int64_t kStep = static_cast<int64_t>(kRowsAtOnce);
  Ahead ahead(args.next, static_cast<size_t>(args.n_rows / kStep));
  for (int64_t row = 0; row < args.n_rows; row += kStep) {
    ahead.fetch_part();
    const int64_t at = args.rows.at(args.first_row + row, args.first_unit);
    float* sums = args.sums + row * kPanel;
    for (size_t output = 0; output < kPanel; output += kOutputsAtOnce) {
      multiply(args.rows.units + at, args.rows.sums + at, args.tile, output, sums + output);
    }
  }
}
#endif

void multiply_code_tile(const CodeTileArgs& args, bool byte_dots) {
#if defined(VLCACHE_BYTE_DOTS)
  const bool halves = args.bits == ActivationBits::k15;
  if (byte_dots) return halves ? multiply_tile<ByDots<2>>(args) : multiply_tile<ByDots<1>>(args);
#if HWY_TARGET == HWY_AVX2
  return args.tile.words ? multiply_tile<ByWords>(args) : multiply_tile<ByPairs>(args);
#endif
#endif
  (void)args, (void)byte_dots;
  CHECK(false);
}

}  // namespace vlcache::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace vlcache::cpu {
namespace {

HWY_EXPORT(read_code_tile);
HWY_EXPORT(multiply_code_tile);

}  // namespace

bool has_code_tiles(QuantIsa isa) { return isa.byte_dots || (HWY_ARCH_X86 && isa.isa == Isa::kAvx2); }

bool tile_has_words(QuantIsa isa, const QuantForm& form, ActivationBits bits) {
  return !isa.byte_dots && (bits == ActivationBits::k15 || !fit_pairs(form.bits, form.table != CodeTable::kLinear));
}

CodeTile read_code_tile(Isa isa, const QuantLayout& layout, const CodeTilePart& part, std::byte* memory) {
  const auto& [panel, first, words] = part;
  const int64_t n_in = std::min(code_tile_inputs(words), layout.n_in - first), n_units = (n_in + kUnit - 1) / kUnit;
  const int64_t bands = layout.bands();
  float* scales = reinterpret_cast<float*>(memory + n_units * kUnit * kPanel * (words ? 2 : 1));
  const CodeTile tile{.codes = reinterpret_cast<uint32_t*>(memory),
                      .scales = scales,
                      .mins = scales + n_units * bands * kPanel,
                      .n_units = n_units,
                      .bands = bands,
                      .words = words};
  VLCACHE_SIMD(isa, read_code_tile)(layout, {layout, panel, first, n_in}, tile);
  return tile;
}

void multiply_code_tile(QuantIsa isa, const CodeTileArgs& args) {
  CHECK(args.rows.group == kCodedGroup && args.first_row % kCodedGroup == 0);
  VLCACHE_SIMD(isa.isa, multiply_code_tile)(args, isa.byte_dots);
}

}  // namespace vlcache::cpu
#endif
