#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "ops/cpu/row_ops.h"
#include "ops/cpu/simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/norm.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "ops/cpu/simd-inl.h"

#ifndef VLCACHE_NORM_ARGS  // this file is compiled once per target
#define VLCACHE_NORM_ARGS
namespace vlcache::cpu {
struct NormArgs {
  const std::byte* w;
  const std::byte* b;  // layer norm only
  float eps;
  size_t width;
};
}  // namespace vlcache::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace vlcache::cpu::HWY_NAMESPACE {

// sum of f(x[i]) with two accumulators.
template <typename T, typename F>
HWY_INLINE float sum_of(const T* x, size_t n, const F& f) {
  const F32Tag d;
  const size_t lanes = f32_lanes();
  F32Vec even = hn::Zero(d), odd = hn::Zero(d);
  size_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    even = f(even, load_f32(x + i), lanes);
    odd = f(odd, load_f32(x + i + lanes), lanes);
  }
  for (; i < n; i += lanes) even = f(even, load_f32(x + i, n - i), std::min(n - i, lanes));
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(even, odd)));
}

template <typename T>
void rms_row(const T* x, const T* w, float eps, size_t n, T* y) {
  const F32Tag d;
  const float squares = sum_of(x, n, [](F32Vec s, F32Vec v, size_t) { return hn::MulAdd(v, v, s); });
  const F32Vec scale = hn::Set(d, 1.0f / std::sqrt(squares / static_cast<float>(n) + eps));
  for (size_t i = 0; i < n; i += f32_lanes()) {
    F32Vec v = hn::Mul(load_f32(x + i, n - i), scale);
    if constexpr (sizeof(T) == 2) v = round_to_bf16(v);
    store_f32(hn::Mul(v, load_f32(w + i, n - i)), y + i, n - i);
  }
}

template <typename T>
void layer_row(const T* x, const T* w, const T* b, float eps, size_t n, T* y) {
  const F32Tag d;
  const float inv_n = 1.0f / static_cast<float>(n);
  const F32Vec mean = hn::Set(d, inv_n * sum_of(x, n, [](F32Vec s, F32Vec v, size_t) { return hn::Add(s, v); }));
  const float squares = sum_of(x, n, [&](F32Vec s, F32Vec v, size_t valid) {
    const F32Vec centred = hn::IfThenElseZero(hn::FirstN(F32Tag(), valid), hn::Sub(v, mean));
    return hn::MulAdd(centred, centred, s);
  });
  const F32Vec scale = hn::Set(d, 1.0f / std::sqrt(squares * inv_n + eps));
  for (size_t i = 0; i < n; i += f32_lanes()) {
    const F32Vec v = hn::Mul(hn::Sub(load_f32(x + i, n - i), mean), scale);
    store_f32(hn::MulAdd(v, load_f32(w + i, n - i), load_f32(b + i, n - i)), y + i, n - i);
  }
}

// Rows [begin, end) of x, each of one or more vectors of `width`.
template <typename T>
void norm_rows(const Tensor& x, const NormArgs& args, const Tensor& y, int64_t begin, int64_t end) {
  const T* w = reinterpret_cast<const T*>(args.w);
  const T* b = reinterpret_cast<const T*>(args.b);
  const size_t row_size = static_cast<size_t>(x.row_size());
  for (int64_t i = begin; i < end; ++i) {
    const T* from = x.row<T>(i);
    T* to = y.row<T>(i);
    for (size_t at = 0; at < row_size; at += args.width) {
      if (b == nullptr) {
        rms_row(from + at, w, args.eps, args.width, to + at);
      } else {
        layer_row(from + at, w, b, args.eps, args.width, to + at);
      }
    }
  }
}

void norm_f32(const Tensor& x, const NormArgs& args, const Tensor& y, int64_t begin, int64_t end) {
  norm_rows<float>(x, args, y, begin, end);
}
void norm_bf16(const Tensor& x, const NormArgs& args, const Tensor& y, int64_t begin, int64_t end) {
  norm_rows<bf16>(x, args, y, begin, end);
}

}  // namespace vlcache::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace vlcache::cpu {
namespace {

HWY_EXPORT(norm_f32);
HWY_EXPORT(norm_bf16);

// `b` null: RMS norm.
void norm(Isa isa, const Tensor& x, const Tensor& w, const Tensor* b, float eps, const Tensor& y) {
  const int64_t width = x.dim(x.rank - 1);
  CHECK(x.rank >= 2 && same_shape(x, y) && x.dtype == y.dtype && w.dtype == x.dtype && w.numel() == width);
  CHECK(b == nullptr || (b->dtype == x.dtype && b->numel() == width));
  if (width == 0) return;
  const auto rows = x.dtype == DType::kF32 ? VLCACHE_SIMD(isa, norm_f32) : VLCACHE_SIMD(isa, norm_bf16);
  const NormArgs args{w.data, b == nullptr ? nullptr : b->data, eps, static_cast<size_t>(width)};
  for_row_ranges(x.rows(), x.row_size(), [&](int64_t begin, int64_t end) { rows(x, args, y, begin, end); });
}

}  // namespace

void rms_norm(Isa isa, const Tensor& x, const Tensor& w, float eps, const Tensor& y) {
  norm(isa, x, w, nullptr, eps, y);
}

void layer_norm(Isa isa, const Tensor& x, const Tensor& w, const Tensor& b, float eps, const Tensor& y) {
  norm(isa, x, w, &b, eps, y);
}

}  // namespace vlcache::cpu
#endif
