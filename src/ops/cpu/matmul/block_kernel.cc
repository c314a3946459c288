#include "ops/cpu/matmul/block_kernel.h"

#include <algorithm>

#include "base/error.h"
#include "ops/cpu/packed.h"
#include "ops/cpu/row_ops.h"
#include "ops/cpu/simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/matmul/block_kernel.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "ops/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace vlcache::cpu::HWY_NAMESPACE {

constexpr size_t kStrip = 16;  // outputs
constexpr size_t kStripFloats = kBlockInputs * kStrip;

// `n` inputs of a panel as f32, strip by strip: the lines of one strip in the panel are 256 bytes apart and would fall
// into a quarter of L1's sets.
template <bool kBf16>
HWY_NOINLINE void lay_out(const float* panel, size_t n, size_t n_strips, float* strips) {
  const F32Tag d;
  const hn::RebindToUnsigned<F32Tag> du;
  const size_t lanes = f32_lanes();
  for (size_t k = 0; k < n; k += kBf16 ? 2 : 1, panel += kPanel) {
    for (size_t s = 0; s < n_strips; ++s) {
      float* out = strips + s * kStripFloats + k * kStrip;
      for (size_t v = 0; v < kStrip; v += lanes) {
        const F32Vec both = hn::LoadU(d, panel + s * kStrip + v);
        if constexpr (kBf16) {
          hn::StoreU(hn::BitCast(d, hn::ShiftLeft<16>(hn::BitCast(du, both))), d, out + v);
          // Of an odd last input: the panel's padding, which nothing multiplies.
          hn::StoreU(hn::BitCast(d, hn::And(hn::BitCast(du, both), hn::Set(du, 0xffff0000u))), d, out + kStrip + v);
        } else {
          hn::StoreU(both, d, out + v);
        }
      }
    }
  }
}

// Adds n inputs of a group of rows to its sums with a strip, or begins the sums.
template <size_t kRows>
HWY_INLINE void group(const float* x, const float* w, size_t n, bool begin, float* sums) {
  const F32Tag d;
  constexpr size_t kLanes = hn::MaxLanes(F32Tag()), kVectors = kStrip / kLanes;
  F32Vec acc[kRows][kVectors];
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t v = 0; v < kVectors; ++v) {
      acc[r][v] = begin ? hn::Zero(d) : hn::LoadU(d, sums + r * kPanel + v * kLanes);
    }
  }
  for (size_t k = 0; k < n; ++k, w += kStrip, x += kRows) {
    F32Vec weights[kVectors];
    for (size_t v = 0; v < kVectors; ++v) weights[v] = hn::LoadU(d, w + v * kLanes);
    for (size_t r = 0; r < kRows; ++r) {
      const F32Vec of_row = hn::Set(d, x[r]);
      for (size_t v = 0; v < kVectors; ++v) acc[r][v] = hn::MulAdd(weights[v], of_row, acc[r][v]);
    }
  }
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t v = 0; v < kVectors; ++v) hn::StoreU(acc[r][v], d, sums + r * kPanel + v * kLanes);
  }
}

// All rows with a strip.
HWY_NOINLINE void strip(const BlockArgs& args, size_t first, size_t n, const float* w, float* sums) {
  const size_t n_rows = static_cast<size_t>(args.n_rows), n_in = static_cast<size_t>(args.n_in);
  const bool begin = first == 0;
  size_t row = 0;
  for (; row + kGroupRows <= n_rows; row += kGroupRows) {
    group<kGroupRows>(args.x + row * n_in + first * kGroupRows, w, n, begin, sums + row * kPanel);
  }
  const size_t left = n_rows - row;
  const float* x = args.x + row * n_in + first * left;
  sums += row * kPanel;
  switch (left) {
    case 1:
      return group<1>(x, w, n, begin, sums);
    case 2:
      return group<2>(x, w, n, begin, sums);
    case 3:
      return group<3>(x, w, n, begin, sums);
    case 4:
      return group<4>(x, w, n, begin, sums);
    case 5:
      return group<5>(x, w, n, begin, sums);
    default:
      return;
  }
}

template <bool kBf16>
HWY_INLINE void block(const BlockArgs& args) {
  const size_t n_in = static_cast<size_t>(args.n_in), n_strips = static_cast<size_t>(args.columns) / kStrip;
  const float* panel = reinterpret_cast<const float*>(args.panel);
  for (size_t first = 0; first < n_in; first += kBlockInputs) {
    const size_t n = std::min(size_t{kBlockInputs}, n_in - first);
    lay_out<kBf16>(panel + first / (kBf16 ? 2 : 1) * kPanel, n, n_strips, args.strips);
    for (size_t s = 0; s < n_strips; ++s) strip(args, first, n, args.strips + s * kStripFloats, args.sums + s * kStrip);
  }
}

void block_bf16(const BlockArgs& args) { block<true>(args); }
void block_f32(const BlockArgs& args) { block<false>(args); }

}  // namespace vlcache::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace vlcache::cpu {
namespace {

HWY_EXPORT(block_bf16);
HWY_EXPORT(block_f32);

}  // namespace

void block_simd_bf16(Isa isa, const BlockArgs& args) { VLCACHE_SIMD(isa, block_bf16)(args); }
void block_simd_f32(Isa isa, const BlockArgs& args) { VLCACHE_SIMD(isa, block_f32)(args); }

void interleave_rows(Isa isa, const Tensor& x, float* out) {
  CHECK(x.dtype == DType::kF32 || x.dtype == DType::kBF16);
  constexpr int64_t kSpan = 128;  // inputs of a group that stay in L1 until the group's last row
  const int64_t n = x.rows(), n_in = x.row_size(), n_groups = (n + kGroupRows - 1) / kGroupRows;
  const int64_t size = dtype_bytes(x.dtype);
  for_row_ranges(n_groups, kGroupRows * n_in, [&](int64_t begin, int64_t end) {
    float row[kSpan];
    for (int64_t first = begin * kGroupRows; first < std::min(n, end * kGroupRows); first += kGroupRows) {
      const int64_t rows = std::min(kGroupRows, n - first);
      float* group = out + first * n_in;
      for (int64_t k = 0; k < n_in; k += kSpan) {
        const int64_t length = std::min(kSpan, n_in - k);
        for (int64_t r = 0; r < rows; ++r) {
          convert_values(isa, {x.dtype, DType::kF32}, x.data + ((first + r) * x.stride + k) * size,
                         reinterpret_cast<std::byte*>(row), length);
          for (int64_t i = 0; i < length; ++i) group[(k + i) * rows + r] = row[i];
        }
      }
    }
  });
}

}  // namespace vlcache::cpu
#endif
