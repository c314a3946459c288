// Many rows with the codes of quantised panels, by dot products of bytes: codes are made bytes once for many rows,
// which come kCodedGroup at a time so that their sums stay in registers.
#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "ops/cpu/quant/quant_kernel.h"
#include "ops/cpu/simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/quant/quant_tile.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "ops/cpu/quant/quant-inl.h"

HWY_BEFORE_NAMESPACE();
namespace vlcache::cpu::HWY_NAMESPACE {

constexpr size_t kTileLanes = hn::MaxLanes(F32Tag());

// A panel's codes as bytes, half after half, of each [n_units][quads][32]. Scales and minima likewise
// [n_units][bands][32].
template <int kBits, bool kTable>
HWY_NOINLINE void read_tiles(const QuantLayout& layout, const std::byte* panel, uint32_t* to_codes, float* to_scales,
                             float* to_mins) {
  const U32Tag d;
  const TableBytes table(layout.form);
  const ReadScales read = scales_reader(layout.form);
  const int64_t bands = layout.bands(), n_units = layout.n_units();
  BlockScales scales;
  int64_t unit = 0;
  for (BlockWalk walk(layout, panel); walk.next();) {
    read(walk.block(), bands * kPanel, scales);
    const std::byte* codes = walk.block().units;
    for (const int64_t end = unit + walk.block().n_units; unit < end; ++unit, codes += layout.unit_bytes()) {
      for (int64_t line = 0; line < layout.unit_bytes(); line += 64) prefetch(codes + line);
      for (int64_t half = 0; half < 2; ++half) {
        const int64_t first = half * kTileOutputs, to = half * n_units + unit;
        uint32_t* bytes = to_codes + to * kQuads * kTileOutputs;
        for (size_t v = 0; v < kTileOutputs; v += kTileLanes) {
          const Quads<kBits, kTable> quads(codes, static_cast<size_t>(first) + v, table);
          unrolled<0, kQuads>([&]<size_t kQuad>() HWY_ATTR {
            hn::StoreU(quads.template get<kQuad>(), d, bytes + kQuad * kTileOutputs + v);
          });
        }
        for (int64_t band = 0; band < bands; ++band) {
          const int64_t from = band * kPanel + first, at = (to * bands + band) * kTileOutputs;
          std::copy_n(scales.scales + from, kTileOutputs, to_scales + at);
          std::copy_n(scales.mins + from, kTileOutputs, to_mins + at);
        }
      }
    }
  }
}

void read_code_tiles(const QuantLayout& layout, const std::byte* panel, uint32_t* to_codes, float* to_scales,
                     float* to_mins) {
  for_form(layout.form, [&]<int kBits, bool kTable>()
                            HWY_ATTR { read_tiles<kBits, kTable>(layout, panel, to_codes, to_scales, to_mins); });
}

#if defined(VLCACHE_BYTE_DOTS)
// Rows and vectors of outputs whose sums are in registers at once: 16 chains of 16 vectors of 512 bits, 8 of 256.
constexpr size_t kTileRows = kTileLanes == 16 ? 8 : 4, kTileVectors = 2;
static_assert(kCodedGroup % kTileRows == 0 && kTileOutputs % (kTileVectors * kTileLanes) == 0);

// The products of kQuads / kBands quads with kTileRows rows; `part`: where the bytes of x begin, its
// high halves or its low ones.
template <size_t kBands>
HWY_INLINE void add_products(const uint32_t* codes, const CodedUnit* x, size_t part,
                             I32Vec (&sums)[kTileRows][kTileVectors]) {
  const U32Tag d;
#pragma GCC unroll 2
  for (size_t quad = 0; quad < kQuads / kBands; ++quad, codes += kTileOutputs) {
    U32Vec w[kTileVectors];
#pragma GCC unroll 2
    for (size_t v = 0; v < kTileVectors; ++v) w[v] = hn::LoadU(d, codes + v * kTileLanes);
#pragma GCC unroll 8
    for (size_t r = 0; r < kTileRows; ++r) {
      uint32_t bytes;
      std::memcpy(&bytes, x[r].codes + part + 4 * quad, 4);
      const U32Vec four = hn::Set(d, bytes);
#pragma GCC unroll 2
      for (size_t v = 0; v < kTileVectors; ++v) sums[r][v] = byte_dot(sums[r][v], w[v], four);
    }
  }
}

// kHalves: bytes of each input of x.
template <size_t kBands, size_t kHalves>
HWY_NOINLINE void multiply_rows(const CodedUnit* x, const UnitSums* x_sums, const CodeTile& tile, size_t output,
                                float* acc_out) {
  const F32Tag d;
  const I32Tag di;
  F32Vec acc[kTileRows][kTileVectors];
#pragma GCC unroll 8
  for (auto& row : acc) {
#pragma GCC unroll 2
    for (F32Vec& v : row) v = hn::Zero(d);
  }
  const uint32_t* codes = tile.codes + output;
  const float *scales = tile.scales + output, *mins = tile.mins + output;
  for (int64_t unit = 0; unit < tile.n_units; ++unit, x += kCodedGroup, x_sums += kCodedGroup) {
    for (size_t band = 0; band < kBands; ++band) {
      I32Vec sums[kTileRows][kTileVectors];
#pragma GCC unroll 8
      for (auto& row : sums) {
#pragma GCC unroll 2
        for (I32Vec& v : row) v = hn::Zero(di);
      }
      const size_t part = band * kUnit / kBands;
      add_products<kBands>(codes, x, part, sums);
      if constexpr (kHalves == 2) {
#pragma GCC unroll 8
        for (auto& row : sums) {
#pragma GCC unroll 2
          for (I32Vec& v : row) v = hn::ShiftLeft<7>(v);
        }
        add_products<kBands>(codes, x, kUnit + part, sums);
      }
#pragma GCC unroll 8
      for (size_t r = 0; r < kTileRows; ++r) {
        const F32Vec x_scale = hn::Set(d, x_sums[r].scale), x_sum = hn::Set(d, x_sums[r].sums[band]);
        const I32Vec start = hn::Set(di, x_sums[r].starts[band]);
#pragma GCC unroll 2
        for (size_t v = 0; v < kTileVectors; ++v) {
          const F32Vec scaled = hn::Mul(hn::ConvertTo(d, hn::Add(sums[r][v], start)), x_scale);
          acc[r][v] = hn::MulAdd(scaled, hn::Load(d, scales + v * kTileLanes), acc[r][v]);
          acc[r][v] = hn::MulAdd(hn::Load(d, mins + v * kTileLanes), x_sum, acc[r][v]);
        }
      }
      codes += kQuads / kBands * kTileOutputs, scales += kTileOutputs, mins += kTileOutputs;
    }
  }
#pragma GCC unroll 8
  for (size_t r = 0; r < kTileRows; ++r) {
#pragma GCC unroll 2
    for (size_t v = 0; v < kTileVectors; ++v) hn::StoreU(acc[r][v], d, acc_out + r * kTileOutputs + v * kTileLanes);
  }
}
#endif

void multiply_code_tile(const CodedRows& rows, int64_t row, const CodeTile& tile, ActivationBits bits, float* acc) {
#if defined(VLCACHE_BYTE_DOTS)
  const int64_t at = rows.at(row, 0);
  const bool halves = bits == ActivationBits::k15;
  const auto multiply = tile.bands == 1 ? (halves ? multiply_rows<1, 2> : multiply_rows<1, 1>)
                                        : (halves ? multiply_rows<2, 2> : multiply_rows<2, 1>);
  for (size_t r = 0; r < kCodedGroup; r += kTileRows) {
    for (size_t output = 0; output < kTileOutputs; output += kTileVectors * kTileLanes) {
      const CodedUnit* x = rows.units + at + r;
      const UnitSums* sums = rows.sums + at + r;
      multiply(x, sums, tile, output, acc + r * kTileOutputs + output);
    }
  }
#else
  (void)rows, (void)row, (void)tile, (void)bits, (void)acc;
  CHECK(false);
#endif
}

}  // namespace vlcache::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace vlcache::cpu {
namespace {

HWY_EXPORT(read_code_tiles);
HWY_EXPORT(multiply_code_tile);

}  // namespace

int64_t code_tile_bytes(const QuantLayout& layout) {
  return layout.n_units() * kPanel * (kUnit + 2 * layout.bands() * int64_t{sizeof(float)});
}

std::array<CodeTile, 2> read_code_tiles(Isa isa, const QuantLayout& layout, const std::byte* panel, std::byte* memory) {
  const int64_t n_units = layout.n_units(), bands = layout.bands(), n_scales = n_units * bands * kTileOutputs;
  uint32_t* codes = reinterpret_cast<uint32_t*>(memory);
  float *scales = reinterpret_cast<float*>(memory + n_units * kUnit * kPanel), *mins = scales + 2 * n_scales;
  VLCACHE_SIMD(isa, read_code_tiles)(layout, panel, codes, scales, mins);
  const int64_t n_codes = n_units * kQuads * kTileOutputs;
  return {CodeTile{codes, scales, mins, n_units, bands},
          CodeTile{codes + n_codes, scales + n_scales, mins + n_scales, n_units, bands}};
}

void multiply_code_tile(Isa isa, const CodedRows& rows, int64_t row, const CodeTile& tile, ActivationBits bits,
                        float* acc) {
  CHECK(rows.group == kCodedGroup && row % kCodedGroup == 0);
  VLCACHE_SIMD(isa, multiply_code_tile)(rows, row, tile, bits, acc);
}

}  // namespace vlcache::cpu
#endif
