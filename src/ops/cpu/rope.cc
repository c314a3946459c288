// Rotary embedding, halves convention: one pass over the rows, f32 arithmetic.
#include "ops/cpu/rope.h"

#include <algorithm>

#include "base/os/threads.h"
#include "ops/cpu/simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/rope.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "ops/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace vlcache::cpu::HWY_NAMESPACE {

// One head: x, y [d], cos, sin [d / 2].
template <typename T>
HWY_INLINE void rotate(const T* x, const float* cos, const float* sin, size_t half, T* y) {
  for (size_t c = 0; c < half; c += f32_lanes()) {
    const size_t n = half - c;
    const F32Vec a = load_f32(x + c, n), b = load_f32(x + half + c, n), u = load_f32(cos + c, n),
                 v = load_f32(sin + c, n);
    store_f32(hn::Sub(hn::Mul(a, u), hn::Mul(b, v)), y + c, n);
    store_f32(hn::Add(hn::Mul(b, u), hn::Mul(a, v)), y + half + c, n);
  }
}

template <typename T>
void rotate_rows(const Tensor& x, const Tensor& cos, const Tensor& sin, const Tensor& y, int64_t begin, int64_t end) {
  const int64_t d = x.dim(2);
  for (int64_t i = begin; i < end; ++i) {
    for (int64_t h = 0; h < x.dim(1); ++h) {
      rotate(x.row<T>(i) + h * d, cos.row<float>(i), sin.row<float>(i), static_cast<size_t>(d / 2),
             y.row<T>(i) + h * d);
    }
  }
}

void rope_f32(const Tensor& x, const Tensor& cos, const Tensor& sin, const Tensor& y, int64_t begin, int64_t end) {
  rotate_rows<float>(x, cos, sin, y, begin, end);
}
void rope_bf16(const Tensor& x, const Tensor& cos, const Tensor& sin, const Tensor& y, int64_t begin, int64_t end) {
  rotate_rows<bf16>(x, cos, sin, y, begin, end);
}

}  // namespace vlcache::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace vlcache::cpu {

HWY_EXPORT(rope_f32);
HWY_EXPORT(rope_bf16);

void rope(Isa isa, const Tensor& x, const Tensor& cos, const Tensor& sin, const Tensor& y) {
  CHECK(x.rank == 3 && y.rank == 3 && x.dtype == y.dtype && x.rows() == y.rows() && x.row_size() == y.row_size());
  CHECK(x.dim(2) % 2 == 0 && cos.dtype == DType::kF32 && sin.dtype == DType::kF32);
  CHECK(cos.rows() >= x.rows() && sin.rows() >= x.rows());
  CHECK(cos.row_size() == x.dim(2) / 2 && sin.row_size() == x.dim(2) / 2);
  const auto rotate = x.dtype == DType::kBF16 ? VLCACHE_SIMD(isa, rope_bf16) : VLCACHE_SIMD(isa, rope_f32);
  const int64_t grain =
      std::max<int64_t>(16384 / std::max<int64_t>(x.row_size(), 1), 1);  // about 10 us of work a thread
  parallel_ranges(x.rows(), grain, [&](int64_t begin, int64_t end, int) { rotate(x, cos, sin, y, begin, end); });
}

}  // namespace vlcache::cpu
#endif  // HWY_ONCE
