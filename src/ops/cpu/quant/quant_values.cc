// Quantised panels as values, on any vector unit.
#include "ops/cpu/quant/quant_values.h"

#include "base/error.h"
#include "ops/cpu/quant/quant_kernel.h"
#include "ops/cpu/simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/quant/quant_values.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "ops/cpu/quant/quant-inl.h"

HWY_BEFORE_NAMESPACE();
namespace vlcache::cpu::HWY_NAMESPACE {

HWY_NOINLINE CodeValues code_values(const QuantForm& form) {
  CodeValues values{.offset = static_cast<float>(code_offset(form))};
  for (int code = 0; code < 16; ++code) {
    const bool linear = form.table == CodeTable::kLinear;
    values.of_4_bits[code] =
        linear ? static_cast<float>(code) - values.offset : static_cast<float>(table_value(form.table, code));
  }
  return values;
}

// Whether no value lies below the normal numbers, 2^-126. Values are multiples of a scale's lowest bit, which in bf16
// is 2^-7 of it at least, or of f16's. n: bands * 64.
HWY_NOINLINE bool gives_normal_values(const QuantForm& form, const BlockScales& scales, int64_t n) {
  if (form.scale != ScaleKind::kBF16) return true;
  const F32Tag d;
  const F32Vec least = hn::Set(d, 0x1p-119f), zero = hn::Zero(d);
  auto tiny = hn::Lt(zero, zero);
  for (int64_t i = 0; i < n; i += static_cast<int64_t>(hn::MaxLanes(d))) {
    const F32Vec s = hn::Abs(hn::Load(d, scales.scales + i));
    tiny = hn::Or(tiny, hn::And(hn::Lt(s, least), hn::Gt(s, zero)));
  }
  return hn::AllFalse(d, tiny);
}

// kBrain: pairs of bf16 in packed.h's layout, else f32. `fast`: for blocks of values that are not below the normal
// numbers; nullptr: none.
template <int kBits, bool kTable, bool kBrain>
HWY_NOINLINE void dequantise_typed(const QuantLayout& layout, BlockWalk walk, BlockToPairs fast,
                                   const ValuePlaces& places) {
  const F32Tag d;
  const U32Tag du;
  const I32Tag di;
  constexpr size_t kLanes = hn::MaxLanes(F32Tag());
  const TableBytes table(layout.form);
  const I32Vec offset = hn::Set(di, code_offset(layout.form));
  const bool has_min = layout.form.min != MinKind::kNone;
  const ReadScales read = scales_reader(layout.form);
  const size_t bands = static_cast<size_t>(layout.bands());
  const int64_t n_scales = layout.bands() * kPanel;
  const CodeValues values = code_values(layout.form);
  BlockScales scales;
  std::byte* to = places.out;
  const size_t input = kBrain ? kPanel / 2 : places.input, unit_bytes = kUnit * input * sizeof(float);
  const int64_t code_bytes = layout.unit_bytes();
  while (walk.next()) {
    read(walk.block(), n_scales, scales);
    if (kBrain && fast != nullptr && gives_normal_values(layout.form, scales, n_scales)) {
      const int64_t n_units = walk.block().n_units;
      fast({values, walk.block().units, n_units, layout.bands(), scales.scales, scales.mins}, to);
      to += n_units * kUnit * kPanel * 2;
      continue;
    }
    const std::byte* codes = walk.block().units;
    for (int64_t unit = 0; unit < walk.block().n_units; ++unit, codes += code_bytes) {
      for (size_t v = 0; v < kLanes64; ++v) {
        const Quads<kBits, kTable> quads(codes, v * kLanes, table);
        unrolled<0, kQuads>([&]<size_t kQuad>() HWY_ATTR {
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
            constexpr size_t kOutputs = static_cast<size_t>(kStrip);
            float* values = reinterpret_cast<float*>(to) + kQuad * 4 * input + v * kLanes / kOutputs * places.strip +
                            v * kLanes % kOutputs;
            hn::StoreU(w0, d, values), hn::StoreU(w1, d, values + input);
            hn::StoreU(w2, d, values + 2 * input), hn::StoreU(w3, d, values + 3 * input);
          }
        });
      }
      to += unit_bytes;
    }
  }
}

void dequantise_bf16(const QuantLayout& layout, const BlockWalk& walk, BlockToPairs fast, std::byte* out) {
  for_form(layout.form, [&]<int kBits, bool kTable>() HWY_ATTR {
    dequantise_typed<kBits, kTable, true>(layout, walk, fast, {out, 0, 0});
  });
}
void dequantise_f32(const QuantLayout& layout, const BlockWalk& walk, const ValuePlaces& places) {
  for_form(layout.form, [&]<int kBits, bool kTable>()
                            HWY_ATTR { dequantise_typed<kBits, kTable, false>(layout, walk, nullptr, places); });
}

}  // namespace vlcache::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace vlcache::cpu {
namespace {

HWY_EXPORT(dequantise_bf16);
HWY_EXPORT(dequantise_f32);

}  // namespace

void dequantise_panel(Isa isa, const QuantLayout& layout, const std::byte* panel, DType dtype, std::byte* out) {
  if (dtype == DType::kBF16) {
    const BlockToPairs fast = isa >= Isa::kAvx512Bf16 ? block_to_pairs_avx512bf16(layout.form) : nullptr;
    return VLCACHE_SIMD(isa, dequantise_bf16)(layout, {layout, panel}, fast, out);
  }
  CHECK(dtype == DType::kF32);
  VLCACHE_SIMD(isa, dequantise_f32)(layout, {layout, panel}, {out, kPanel, kStrip});
}

void dequantise_strips(Isa isa, const QuantLayout& layout, const std::byte* panel, int64_t first, int64_t n,
                       float* strips) {
  CHECK(first % kBlockInputs == 0 && n <= kBlockInputs);
  VLCACHE_SIMD(isa, dequantise_f32)
  (layout, {layout, panel, first, n}, {reinterpret_cast<std::byte*>(strips), kStrip, kStripFloats});
}

}  // namespace vlcache::cpu
#endif
