// The panel kernel on any vector unit: bf16 weights are widened to f32 in registers.
#include "ops/cpu/matmul/panel_kernel.h"

#include <hwy/cache_control.h>

#include <algorithm>

#include "ops/cpu/simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/matmul/panel_kernel.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "ops/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace vlcache::cpu::HWY_NAMESPACE {

// Bytes ahead to prefetch, see panel_kernel_avx512bf16.cc.
constexpr size_t kAhead = 2048;

// kRows rows with 16 * kGroups columns from `column` on. Weights of k: one line of 64 f32, or of 64 pairs of bf16.
template <size_t kRows, size_t kGroups, bool kBf16>
HWY_INLINE void tile(const PanelArgs& args, size_t column) {
  const F32Tag d;
  constexpr size_t kLanes = hn::MaxLanes(F32Tag());
  constexpr size_t kVectors = kGroups * 16 / kLanes;
  F32Vec acc[kRows][kVectors];
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t v = 0; v < kVectors; ++v) acc[r][v] = hn::Zero(d);
  }
  const float* w = reinterpret_cast<const float*>(args.panel) + column;
  const float* x = reinterpret_cast<const float*>(args.x);
  const size_t n_in = static_cast<size_t>(args.n_in), x_stride = static_cast<size_t>(args.x_stride);
  for (size_t k = 0; k < n_in; k += kBf16 ? 2 : 1, w += 64) {
    for (size_t g = 0; g < kGroups; ++g) hwy::Prefetch(w + kAhead / 4 + g * 16);
    for (size_t v = 0; v < kVectors; ++v) {
      const F32Vec both = hn::LoadU(d, w + v * kLanes);
      if constexpr (!kBf16) {
        for (size_t r = 0; r < kRows; ++r) acc[r][v] = hn::MulAdd(both, hn::Set(d, x[r * x_stride + k]), acc[r][v]);
        continue;
      }
      const hn::RebindToUnsigned<F32Tag> du;
      const F32Vec even = hn::BitCast(d, hn::ShiftLeft<16>(hn::BitCast(du, both)));
      const F32Vec odd = hn::BitCast(d, hn::And(hn::BitCast(du, both), hn::Set(du, 0xffff0000u)));
      for (size_t r = 0; r < kRows; ++r) acc[r][v] = hn::MulAdd(even, hn::Set(d, x[r * x_stride + k]), acc[r][v]);
      if (k + 1 == n_in) continue;
      for (size_t r = 0; r < kRows; ++r) acc[r][v] = hn::MulAdd(odd, hn::Set(d, x[r * x_stride + k + 1]), acc[r][v]);
    }
  }
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t v = 0; v < kVectors; ++v) hn::StoreU(acc[r][v], d, args.acc + r * 64 + column + v * kLanes);
  }
}

// All columns, in tiles whose sums fit into the registers: 32 of AVX-512 and NEON, 16 elsewhere.
template <size_t kRows, bool kBf16>
HWY_NOINLINE void all_columns(const PanelArgs& args) {
  constexpr size_t kLanes = hn::MaxLanes(F32Tag());
  constexpr size_t kSums = kLanes == 16 ? 24 : 8;  // vectors
  constexpr size_t kWide = kRows * 64 / kLanes <= kSums ? 4 : kRows * 32 / kLanes <= kSums ? 2 : 1;
  const size_t columns = static_cast<size_t>(args.columns);
  size_t column = 0;
  for (; column + kWide * 16 <= columns; column += kWide * 16) tile<kRows, kWide, kBf16>(args, column);
  for (; column < columns; column += 16) tile<kRows, 1, kBf16>(args, column);
}

template <bool kBf16>
HWY_INLINE void panel(PanelArgs args) {
  constexpr int64_t kMostRows = hn::MaxLanes(F32Tag()) == 16 ? kPanelRows : 4;  // rows whose sums fit
  const std::byte* x = args.x;
  float* acc = args.acc;
  for (int64_t row = 0; row < args.n_rows; row += kMostRows) {
    args.x = x + row * args.x_stride * 4;
    args.acc = acc + row * 64;
    switch (std::min(args.n_rows - row, kMostRows)) {
      case 1:
        all_columns<1, kBf16>(args);
        break;
      case 2:
        all_columns<2, kBf16>(args);
        break;
      case 3:
        all_columns<3, kBf16>(args);
        break;
      case 4:
        all_columns<4, kBf16>(args);
        break;
      case 5:
        if constexpr (kMostRows >= 5) all_columns<5, kBf16>(args);
        break;
      default:
        if constexpr (kMostRows >= 6) all_columns<6, kBf16>(args);
    }
  }
}

void panel_bf16(const PanelArgs& args) { panel<true>(args); }
void panel_f32(const PanelArgs& args) { panel<false>(args); }

}  // namespace vlcache::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace vlcache::cpu {
namespace {

HWY_EXPORT(panel_bf16);
HWY_EXPORT(panel_f32);

}  // namespace

void panel_simd_bf16(Isa isa, const PanelArgs& args) { VLCACHE_SIMD(isa, panel_bf16)(args); }
void panel_simd_f32(Isa isa, const PanelArgs& args) { VLCACHE_SIMD(isa, panel_f32)(args); }

}  // namespace vlcache::cpu
#endif
