#include "ops/cpu/matmul/block_kernel.h"

#include <algorithm>

#include "base/error.h"
#include "ops/cpu/ahead.h"
#include "ops/cpu/row_ops.h"
#include "ops/cpu/simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/matmul/block_kernel.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "ops/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace vlcache::cpu::HWY_NAMESPACE {

template <bool kBf16>
HWY_INLINE void to_strips(const float* inputs, size_t n, float* strips) {
  const F32Tag d;
  const hn::RebindToUnsigned<F32Tag> du;
  const size_t lanes = f32_lanes();
  for (size_t k = 0; k < n; k += kBf16 ? 2 : 1, inputs += kPanel) {
    for (size_t output = 0; output < kPanel; output += lanes) {
      float* out = strips + output / kStrip * kStripFloats + k * kStrip + output % kStrip;
      const F32Vec both = hn::LoadU(d, inputs + output);
      if constexpr (kBf16) {
        hn::StoreU(hn::BitCast(d, hn::ShiftLeft<16>(hn::BitCast(du, both))), d, out);
        // Of an odd last input: the panel's padding, which nothing multiplies.
        hn::StoreU(hn::BitCast(d, hn::And(hn::BitCast(du, both), hn::Set(du, 0xffff0000u))), d, out + kStrip);
      } else {
        hn::StoreU(both, d, out);
      }
    }
  }
}

void bf16_to_strips(const std::byte* inputs, int64_t n, float* strips) {
  to_strips<true>(reinterpret_cast<const float*>(inputs), static_cast<size_t>(n), strips);
}
void f32_to_strips(const std::byte* inputs, int64_t n, float* strips) {
  to_strips<false>(reinterpret_cast<const float*>(inputs), static_cast<size_t>(n), strips);
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
HWY_NOINLINE void strip(const BlockArgs& args, const float* w, float* sums, Ahead& ahead) {
  const size_t n_rows = static_cast<size_t>(args.n_rows), n = static_cast<size_t>(args.n_inputs);
  const float* x = args.x;
  size_t row = 0;
  for (; row + kGroupRows <= n_rows; row += kGroupRows, x += kGroupRows * n) {
    ahead.fetch_part();
    group<kGroupRows>(x, w, n, args.begin, sums + row * kPanel);
  }
  sums += row * kPanel;
  switch (n_rows - row) {
    case 1:
      return group<1>(x, w, n, args.begin, sums);
    case 2:
      return group<2>(x, w, n, args.begin, sums);
    case 3:
      return group<3>(x, w, n, args.begin, sums);
    case 4:
      return group<4>(x, w, n, args.begin, sums);
    case 5:
      return group<5>(x, w, n, args.begin, sums);
    default:
      return;
  }
}

void block(const BlockArgs& args) {
  const size_t n_strips = static_cast<size_t>(args.columns / kStrip);
  Ahead ahead(args.next, n_strips * static_cast<size_t>(args.n_rows / kGroupRows));
  for (size_t s = 0; s < n_strips; ++s) strip(args, args.strips + s * kStripFloats, args.sums + s * kStrip, ahead);
}

}  // namespace vlcache::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace vlcache::cpu {
namespace {

HWY_EXPORT(bf16_to_strips);
HWY_EXPORT(f32_to_strips);
HWY_EXPORT(block);

// Rows [first, first + rows) of x as one group.
template <int64_t kRows>
void interleave_group(Isa isa, const Tensor& x, int64_t first, int64_t rows, float* out) {
  constexpr int64_t kSpan = 128;  // inputs that stay in L1 between their conversion and the group
  static_assert(kBlockInputs % kSpan == 0);
  const int64_t n = x.rows(), n_in = x.row_size(), size = dtype_bytes(x.dtype);
  float spans[kGroupRows][kSpan];
  for (int64_t k = 0; k < n_in; k += kSpan) {
    const int64_t length = std::min(kSpan, n_in - k), in_block = k % kBlockInputs;
    for (int64_t r = 0; r < rows; ++r) {
      convert_values(isa, {x.dtype, DType::kF32}, x.data + ((first + r) * x.stride + k) * size,
                     reinterpret_cast<std::byte*>(spans[r]), length);
    }
    float* to = out + interleaved_at(n, n_in, first, k - in_block) + in_block * rows;
    for (int64_t i = 0; i < length; ++i, to += rows) {
      for (int64_t r = 0; r < (kRows > 0 ? kRows : rows); ++r) to[r] = spans[r][i];
    }
  }
}

}  // namespace

void widen_to_strips(Isa isa, DType dtype, const std::byte* inputs, int64_t n, float* strips) {
  if (dtype == DType::kBF16) return VLCACHE_SIMD(isa, bf16_to_strips)(inputs, n, strips);
  CHECK(dtype == DType::kF32);
  VLCACHE_SIMD(isa, f32_to_strips)(inputs, n, strips);
}

void multiply_block(Isa isa, const BlockArgs& args) { VLCACHE_SIMD(isa, block)(args); }

void interleave_rows(Isa isa, const Tensor& x, float* out) {
  CHECK(x.dtype == DType::kF32 || x.dtype == DType::kBF16);
  const int64_t n = x.rows(), n_groups = (n + kGroupRows - 1) / kGroupRows;
  for_row_ranges(n_groups, kGroupRows * x.row_size(), [&](int64_t begin, int64_t end) {
    for (int64_t first = begin * kGroupRows; first < std::min(n, end * kGroupRows); first += kGroupRows) {
      const int64_t rows = std::min(kGroupRows, n - first);
      rows == kGroupRows ? interleave_group<kGroupRows>(isa, x, first, rows, out)
                         : interleave_group<0>(isa, x, first, rows, out);
    }
  });
}

}  // namespace vlcache::cpu
#endif
