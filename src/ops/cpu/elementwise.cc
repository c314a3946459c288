#include <algorithm>

#include "base/error.h"
#include "ops/cpu/row_ops.h"
#include "ops/cpu/simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/elementwise.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "ops/cpu/activation-inl.h"

HWY_BEFORE_NAMESPACE();
namespace vlcache::cpu::HWY_NAMESPACE {

template <typename T>
void add_row(const T* a, const T* b, size_t n, T* y) {
  for (size_t i = 0; i < n; i += f32_lanes()) {
    store_f32(hn::Add(load_f32(a + i, n - i), load_f32(b + i, n - i)), y + i, n - i);
  }
}

template <typename T>
void scale_row(const T* x, float factor, size_t n, T* y) {
  const F32Vec by = hn::Set(F32Tag(), factor);
  for (size_t i = 0; i < n; i += f32_lanes()) store_f32(hn::Mul(load_f32(x + i, n - i), by), y + i, n - i);
}

template <typename T>
void activate_row(Activation act, const T* x, size_t n, T* y) {
  for (size_t i = 0; i < n; i += f32_lanes()) store_f32(activate_vec(act, load_f32(x + i, n - i)), y + i, n - i);
}

template <typename T>
void gated_row(Activation act, const T* gate_up, size_t n, T* y) {
  for (size_t i = 0; i < n; i += f32_lanes()) {
    const F32Vec gate = activate_vec(act, load_f32(gate_up + i, n - i));
    store_f32(hn::Mul(gate, load_f32(gate_up + n + i, n - i)), y + i, n - i);
  }
}

void add_f32(const float* a, const float* b, size_t n, float* y) { add_row(a, b, n, y); }
void add_bf16(const bf16* a, const bf16* b, size_t n, bf16* y) { add_row(a, b, n, y); }
void scale_f32(const float* x, float factor, size_t n, float* y) { scale_row(x, factor, n, y); }
void scale_bf16(const bf16* x, float factor, size_t n, bf16* y) { scale_row(x, factor, n, y); }
void activate_f32(Activation act, const float* x, size_t n, float* y) { activate_row(act, x, n, y); }
void activate_bf16(Activation act, const bf16* x, size_t n, bf16* y) { activate_row(act, x, n, y); }
void gated_f32(Activation act, const float* gate_up, size_t n, float* y) { gated_row(act, gate_up, n, y); }
void gated_bf16(Activation act, const bf16* gate_up, size_t n, bf16* y) { gated_row(act, gate_up, n, y); }

}  // namespace vlcache::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace vlcache::cpu {
namespace {

HWY_EXPORT(add_f32);
HWY_EXPORT(add_bf16);
HWY_EXPORT(scale_f32);
HWY_EXPORT(scale_bf16);
HWY_EXPORT(activate_f32);
HWY_EXPORT(activate_bf16);
HWY_EXPORT(gated_f32);
HWY_EXPORT(gated_bf16);

// exp and erf make an element as costly as several elements of a sum.
constexpr int64_t kActivationCost = 4;

size_t width_of(const Tensor& t) { return static_cast<size_t>(t.row_size()); }

}  // namespace

bool same_shape(const Tensor& a, const Tensor& b) {
  return a.rank == b.rank && std::equal(a.shape.begin(), a.shape.begin() + a.rank, b.shape.begin());
}

void add(Isa isa, const Tensor& a, const Tensor& b, const Tensor& y) {
  CHECK(same_shape(a, y) && a.row_size() == b.row_size() && (b.rows() == a.rows() || b.rows() == 1));
  CHECK(a.dtype == y.dtype && b.dtype == y.dtype);
  const int64_t b_step = b.rows() == 1 ? 0 : 1;
  for_row_ranges(a.rows(), a.row_size(), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (y.dtype == DType::kF32) {
        VLCACHE_SIMD(isa, add_f32)(a.row<float>(i), b.row<float>(i * b_step), width_of(y), y.row<float>(i));
      } else {
        VLCACHE_SIMD(isa, add_bf16)(a.row<bf16>(i), b.row<bf16>(i * b_step), width_of(y), y.row<bf16>(i));
      }
    }
  });
}

void scale(Isa isa, const Tensor& x, float factor, const Tensor& y) {
  CHECK(same_shape(x, y) && x.dtype == y.dtype);
  for_row_ranges(x.rows(), x.row_size(), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (y.dtype == DType::kF32) {
        VLCACHE_SIMD(isa, scale_f32)(x.row<float>(i), factor, width_of(y), y.row<float>(i));
      } else {
        VLCACHE_SIMD(isa, scale_bf16)(x.row<bf16>(i), factor, width_of(y), y.row<bf16>(i));
      }
    }
  });
}

void activate(Isa isa, const Tensor& x, Activation act, const Tensor& y) {
  CHECK(same_shape(x, y) && x.dtype == y.dtype);
  for_row_ranges(x.rows(), x.row_size() * kActivationCost, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (y.dtype == DType::kF32) {
        VLCACHE_SIMD(isa, activate_f32)(act, x.row<float>(i), width_of(y), y.row<float>(i));
      } else {
        VLCACHE_SIMD(isa, activate_bf16)(act, x.row<bf16>(i), width_of(y), y.row<bf16>(i));
      }
    }
  });
}

void gated_act(Isa isa, const Tensor& gate_up, Activation act, const Tensor& y) {
  CHECK(gate_up.rows() == y.rows() && gate_up.row_size() == 2 * y.row_size() && gate_up.dtype == y.dtype);
  for_row_ranges(y.rows(), y.row_size() * kActivationCost, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (y.dtype == DType::kF32) {
        VLCACHE_SIMD(isa, gated_f32)(act, gate_up.row<float>(i), width_of(y), y.row<float>(i));
      } else {
        VLCACHE_SIMD(isa, gated_bf16)(act, gate_up.row<bf16>(i), width_of(y), y.row<bf16>(i));
      }
    }
  });
}

}  // namespace vlcache::cpu
#endif
