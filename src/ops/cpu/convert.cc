// Converts between float dtypes.
#include <cstring>

#include "base/error.h"
#include "ops/cpu/row_ops.h"
#include "ops/cpu/simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/convert.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "ops/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace vlcache::cpu::HWY_NAMESPACE {

struct Half {
  uint16_t bits;
};

HWY_INLINE F32Vec load_f32(const Half* p) {
  const hn::Rebind<hwy::float16_t, F32Tag> d16;
  return hn::PromoteTo(F32Tag(), hn::LoadU(d16, reinterpret_cast<const hwy::float16_t*>(p)));
}

// x may have any alignment: vectors are loaded unaligned, the rest through memcpy.
template <typename From, typename To>
HWY_NOINLINE void convert_typed(const std::byte* x, std::byte* y, size_t n) {
  const size_t lanes = f32_lanes();
  const From* from = reinterpret_cast<const From*>(x);
  To* to = reinterpret_cast<To*>(y);
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) store_f32(load_f32(from + i), to + i);
  if (i == n) return;
  HWY_ALIGN From part[16] = {};
  std::memcpy(part, x + i * sizeof(From), (n - i) * sizeof(From));
  store_f32(load_f32(part), to + i, n - i);
}

void convert_f32_bf16(const std::byte* x, std::byte* y, size_t n) { convert_typed<float, bf16>(x, y, n); }
void convert_bf16_f32(const std::byte* x, std::byte* y, size_t n) { convert_typed<bf16, float>(x, y, n); }
void convert_f16_f32(const std::byte* x, std::byte* y, size_t n) { convert_typed<Half, float>(x, y, n); }
void convert_f16_bf16(const std::byte* x, std::byte* y, size_t n) { convert_typed<Half, bf16>(x, y, n); }

}  // namespace vlcache::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace vlcache::cpu {
namespace {

HWY_EXPORT(convert_f32_bf16);
HWY_EXPORT(convert_bf16_f32);
HWY_EXPORT(convert_f16_f32);
HWY_EXPORT(convert_f16_bf16);

}  // namespace

void convert_values(Isa isa, Conversion dtypes, const std::byte* x, std::byte* y, int64_t n) {
  const auto [from, to] = dtypes;
  const size_t count = static_cast<size_t>(n);
  CHECK(to == DType::kF32 || to == DType::kBF16);
  if (from == to) {
    std::memcpy(y, x, count * static_cast<size_t>(dtype_bytes(from)));
  } else if (from == DType::kF32) {
    VLCACHE_SIMD(isa, convert_f32_bf16)(x, y, count);
  } else if (from == DType::kBF16) {
    VLCACHE_SIMD(isa, convert_bf16_f32)(x, y, count);
  } else {
    CHECK(from == DType::kF16);
    (to == DType::kF32 ? VLCACHE_SIMD(isa, convert_f16_f32) : VLCACHE_SIMD(isa, convert_f16_bf16))(x, y, count);
  }
}

void convert(Isa isa, const Tensor& x, const Tensor& y) {
  CHECK(same_shape(x, y));
  const int64_t x_step = x.stride * dtype_bytes(x.dtype), y_step = y.stride * dtype_bytes(y.dtype);
  for_row_ranges(x.rows(), x.row_size(), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      convert_values(isa, {x.dtype, y.dtype}, x.data + i * x_step, y.data + i * y_step, x.row_size());
    }
  });
}

}  // namespace vlcache::cpu
#endif
