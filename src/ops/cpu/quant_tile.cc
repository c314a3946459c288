// Many rows with the codes of quantised panels, by dot products of bytes: codes are made bytes once for many rows,
// which come kCodedGroup at a time so that their sums stay in registers.
#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "ops/cpu/quant_kernel.h"
#include "ops/cpu/simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/quant_tile.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "ops/cpu/quant-inl.h"

HWY_BEFORE_NAMESPACE();
namespace vlcache::cpu::HWY_NAMESPACE {

constexpr size_t kTileLanes = hn::MaxLanes(F32Tag());

template <int kBits, bool kTable>
HWY_NOINLINE void read_tile(const QuantLayout& layout, const std::byte* panel, int64_t half, const CodeTile& out) {
  const U32Tag d;
  const TableBytes table(layout.form);
  const ReadScales read = scales_reader(layout.form);
  const size_t bands = static_cast<size_t>(layout.bands()), first = static_cast<size_t>(half * kTileOutputs);
  BlockScales scales;
  uint32_t* codes = reinterpret_cast<uint32_t*>(out.codes);
  float *to_scales = out.scales, *to_mins = out.mins;
  for (BlockWalk walk(layout, panel); walk.next();) {
    read(walk.block(), layout.bands() * kPanel, scales);
    const std::byte* units = walk.block().units;
    for (int64_t unit = 0; unit < walk.block().n_units; ++unit, units += layout.unit_bytes()) {
      for (size_t v = 0; v < kTileOutputs; v += kTileLanes) {
        const Quads<kBits, kTable> quads(units, first + v, table);
        for_quads<0, kQuads>([&]<size_t kQuad>() HWY_ATTR {
          hn::StoreU(quads.template get<kQuad>(), d, codes + kQuad * kTileOutputs + v);
        });
      }
      codes += kQuads * kTileOutputs;
      for (size_t band = 0; band < bands; ++band, to_scales += kTileOutputs, to_mins += kTileOutputs) {
        std::copy_n(scales.scales + band * kPanel + first, kTileOutputs, to_scales);
        std::copy_n(scales.mins + band * kPanel + first, kTileOutputs, to_mins);
      }
    }
  }
}

void read_code_tile(const QuantLayout& layout, const std::byte* panel, int64_t half, const CodeTile& out) {
  for_form(layout.form, [&]<int kBits, bool kTable>() HWY_ATTR { read_tile<kBits, kTable>(layout, panel, half, out); });
}

#if defined(VLCACHE_BYTE_DOTS)
// Rows and vectors of outputs whose sums are in registers at once: 16 chains of 16 vectors of 512 bits, 8 of 256.
constexpr size_t kTileRows = kTileLanes == 16 ? 8 : 4, kTileVectors = 2;
static_assert(kCodedGroup % kTileRows == 0 && kTileOutputs % (kTileVectors * kTileLanes) == 0);

// The products of kQuads / kBands quads with kTileRows rows; `part`: 0 for the high halves of x, kUnit for the low
// ones.
template <size_t kBands>
HWY_INLINE void add_products(const uint32_t* codes, const CodedUnit* x, size_t part,
                             I32Vec (&sums)[kTileRows][kTileVectors]) {
  const U32Tag d;
#pragma GCC unroll 2
  for (size_t quad = 0; quad < kQuads / kBands; ++quad) {
    U32Vec w[kTileVectors];
#pragma GCC unroll 2
    for (size_t v = 0; v < kTileVectors; ++v) w[v] = hn::LoadU(d, codes + quad * kTileOutputs + v * kTileLanes);
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
  const uint32_t* codes = reinterpret_cast<const uint32_t*>(tile.codes) + output;
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
        const I32Vec less = hn::Set(di, x_sums[r].less[band]);
#pragma GCC unroll 2
        for (size_t v = 0; v < kTileVectors; ++v) {
          const F32Vec scaled = hn::Mul(hn::ConvertTo(d, hn::Sub(sums[r][v], less)), x_scale);
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

HWY_EXPORT(read_code_tile);
HWY_EXPORT(multiply_code_tile);

}  // namespace

void read_code_tile(Isa isa, const QuantLayout& layout, const std::byte* panel, int64_t half, const CodeTile& out) {
  VLCACHE_SIMD(isa, read_code_tile)(layout, panel, half, out);
}

void multiply_code_tile(Isa isa, const CodedRows& rows, int64_t row, const CodeTile& tile, ActivationBits bits,
                        float* acc) {
  CHECK(rows.group == kCodedGroup && row % kCodedGroup == 0);
  VLCACHE_SIMD(isa, multiply_code_tile)(rows, row, tile, bits, acc);
}

}  // namespace vlcache::cpu
#endif
