// Bias, activation, residual and rounding in one pass over a tile that is still in L1.
#include "ops/cpu/matmul/epilogue.h"

#include "ops/cpu/simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/matmul/epilogue.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "ops/cpu/activation-inl.h"

HWY_BEFORE_NAMESPACE();
namespace vlcache::cpu::HWY_NAMESPACE {

// B: dtype of the bias, T: of y and the residual.
template <typename B, typename T>
HWY_NOINLINE void finish(const SumTile& tile, const Epilogue& epilogue, const Tensor& y) {
  const size_t n = static_cast<size_t>(tile.n_columns);
  const B* bias = epilogue.bias != nullptr ? epilogue.bias->as<B>() + tile.column : nullptr;
  for (int64_t r = 0; r < tile.n_rows; ++r) {
    const float* sums = tile.sums + r * tile.ld;
    T* out = y.row<T>(tile.row + r) + tile.column;
    const T* residual = epilogue.residual != nullptr ? epilogue.residual->row<T>(tile.row + r) + tile.column : nullptr;
    for (size_t i = 0; i < n; i += f32_lanes()) {
      F32Vec v = load_f32(sums + i, n - i);
      if (bias != nullptr) v = hn::Add(v, load_f32(bias + i, n - i));
      v = activate_vec(epilogue.act, v);
      if (residual != nullptr) v = hn::Add(v, load_f32(residual + i, n - i));
      store_f32(v, out + i, n - i);
    }
  }
}

void finish_f32(const SumTile& tile, const Epilogue& e, const Tensor& y) { finish<float, float>(tile, e, y); }
void finish_bf16(const SumTile& tile, const Epilogue& e, const Tensor& y) { finish<bf16, bf16>(tile, e, y); }
void finish_bf16_f32(const SumTile& tile, const Epilogue& e, const Tensor& y) { finish<bf16, float>(tile, e, y); }

}  // namespace vlcache::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace vlcache::cpu {
namespace {

HWY_EXPORT(finish_f32);
HWY_EXPORT(finish_bf16);
HWY_EXPORT(finish_bf16_f32);

}  // namespace

void finish_tile(Isa isa, const SumTile& tile, const Epilogue& epilogue, const Tensor& y) {
  if (y.dtype == DType::kBF16) {
    VLCACHE_SIMD(isa, finish_bf16)(tile, epilogue, y);
  } else if (epilogue.bias != nullptr && epilogue.bias->dtype == DType::kBF16) {
    VLCACHE_SIMD(isa, finish_bf16_f32)(tile, epilogue, y);
  } else {
    VLCACHE_SIMD(isa, finish_f32)(tile, epilogue, y);
  }
}

}  // namespace vlcache::cpu
#endif
