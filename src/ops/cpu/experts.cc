#include <algorithm>
#include <cmath>
#include <vector>

#include "base/error.h"
#include "ops/cpu/row_ops.h"
#include "ops/cpu/simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/experts.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "ops/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace vlcache::cpu::HWY_NAMESPACE {

// y = x + sum of weights[j] rows[j], n values each.
template <typename T>
void combine_row(const T* x, const T* const* rows, const float* weights, size_t n_rows, size_t n, T* y) {
  for (size_t i = 0; i < n; i += f32_lanes()) {
    F32Vec sum = load_f32(x + i, n - i);
    for (size_t j = 0; j < n_rows; ++j) {
      sum = hn::Add(sum, hn::Mul(hn::Set(hn::ScalableTag<float>(), weights[j]), load_f32(rows[j] + i, n - i)));
    }
    store_f32(sum, y + i, n - i);
  }
}

void combine_f32(const float* x, const float* const* rows, const float* weights, size_t n_rows, size_t n, float* y) {
  combine_row(x, rows, weights, n_rows, n, y);
}
void combine_bf16(const bf16* x, const bf16* const* rows, const float* weights, size_t n_rows, size_t n, bf16* y) {
  combine_row(x, rows, weights, n_rows, n, y);
}

}  // namespace vlcache::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace vlcache::cpu {
namespace {

HWY_EXPORT(combine_f32);
HWY_EXPORT(combine_bf16);

template <typename T>
void combine_range(Isa isa, const Tensor& x, const Tensor& rows, const Tensor& at, const Tensor& weights,
                   const Tensor& y, int64_t begin, int64_t end) {
  std::vector<const T*> from(static_cast<size_t>(at.row_size()));
  const auto width = static_cast<size_t>(x.row_size());
  for (int64_t i = begin; i < end; ++i) {
    for (size_t j = 0; j < from.size(); ++j) {
      const int32_t row = at.row<int32_t>(i)[j];
      CHECK(0 <= row && row < rows.rows());
      from[j] = rows.row<T>(row);
    }
    if constexpr (std::is_same_v<T, float>) {
      VLCACHE_SIMD(isa, combine_f32)(x.row<T>(i), from.data(), weights.row<float>(i), from.size(), width, y.row<T>(i));
    } else {
      VLCACHE_SIMD(isa, combine_bf16)(x.row<T>(i), from.data(), weights.row<float>(i), from.size(), width, y.row<T>(i));
    }
  }
}

float logit_at(const Tensor& logits, int64_t row, int32_t expert) {
  return logits.dtype == DType::kF32 ? logits.row<float>(row)[expert] : to_float(logits.row<bf16>(row)[expert]);
}

}  // namespace

void route(const Tensor& logits, const Tensor& ids, const Tensor& weights) {
  const auto n_experts = static_cast<int32_t>(logits.row_size());
  const int64_t k = ids.row_size();
  CHECK(ids.dtype == DType::kI32 && weights.dtype == DType::kF32 && 1 <= k && k <= n_experts);
  CHECK(ids.rows() == logits.rows() && weights.rows() == logits.rows() && weights.row_size() == k);
  for_row_ranges(logits.rows(), 8 * logits.row_size(), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      int32_t* chosen = ids.row<int32_t>(i);
      float* share = weights.row<float>(i);
      // Insertion into the k largest so far; a later equal one stays after the earlier ones.
      int64_t n = 0;
      for (int32_t e = 0; e < n_experts; ++e) {
        const float x = logit_at(logits, i, e);
        if (n == k && !(x > share[n - 1])) continue;
        if (n < k) ++n;
        int64_t j = n - 1;
        for (; j > 0 && x > share[j - 1]; --j) chosen[j] = chosen[j - 1], share[j] = share[j - 1];
        chosen[j] = e, share[j] = x;
      }
      // The sum over all experts cancels.
      const float largest = share[0];
      float sum = 0;
      for (int64_t j = 0; j < k; ++j) sum += share[j] = std::exp(share[j] - largest);
      for (int64_t j = 0; j < k; ++j) {
        share[j] /= sum;
        if (logits.dtype == DType::kBF16) share[j] = to_float(to_bf16(share[j]));
      }
    }
  });
}

void combine_rows(Isa isa, const Tensor& x, const Tensor& rows, const Tensor& at, const Tensor& weights,
                  const Tensor& y) {
  CHECK(same_shape(x, y) && rows.row_size() == x.row_size() && at.dtype == DType::kI32);
  CHECK(x.dtype == y.dtype && rows.dtype == y.dtype && weights.dtype == DType::kF32);
  CHECK(at.rows() == x.rows() && weights.rows() == x.rows() && weights.row_size() == at.row_size());
  for_row_ranges(x.rows(), x.row_size() * (1 + at.row_size()), [&](int64_t begin, int64_t end) {
    const auto combine = y.dtype == DType::kF32 ? combine_range<float> : combine_range<bf16>;
    combine(isa, x, rows, at, weights, y, begin, end);
  });
}

}  // namespace vlcache::cpu
#endif
