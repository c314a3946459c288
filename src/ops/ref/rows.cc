#include "ops/ref/rows.h"

#include <cmath>
#include <cstring>
#include <numbers>

namespace vlcache {
namespace {

constexpr int kLanes = 16;

float fold(float (&lanes)[kLanes]) {
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int l = 0; l < width; ++l) lanes[l] += lanes[l + width];
  }
  return lanes[0];
}

}  // namespace

void load_values(const Tensor& t, int64_t at, int64_t n, float* out) {
  if (n == 0) return;
  switch (t.dtype) {
    case DType::kF32:
      std::memcpy(out, t.as<float>() + at, static_cast<size_t>(n) * sizeof(float));
      return;
    case DType::kBF16: {
      const bf16* from = t.as<bf16>() + at;
      for (int64_t i = 0; i < n; ++i) out[i] = to_float(from[i]);
      return;
    }
    case DType::kF16: {
      const uint16_t* from = t.as<uint16_t>() + at;
      for (int64_t i = 0; i < n; ++i) out[i] = f16_to_float(from[i]);
      return;
    }
    default:
      CHECK(false);
  }
}

void store_values(const float* values, int64_t n, const Tensor& t, int64_t at) {
  if (n == 0) return;
  switch (t.dtype) {
    case DType::kF32:
      std::memcpy(t.as<float>() + at, values, static_cast<size_t>(n) * sizeof(float));
      return;
    case DType::kBF16: {
      bf16* to = t.as<bf16>() + at;
      for (int64_t i = 0; i < n; ++i) to[i] = to_bf16(values[i]);
      return;
    }
    default:
      CHECK(false);
  }
}

float dot(const float* a, const float* b, int64_t n) {
  float lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int l = 0; l < kLanes; ++l) lanes[l] += a[i + l] * b[i + l];
  }
  for (; i < n; ++i) lanes[i % kLanes] += a[i] * b[i];
  return fold(lanes);
}

float sum(const float* a, int64_t n) {
  float lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int l = 0; l < kLanes; ++l) lanes[l] += a[i + l];
  }
  for (; i < n; ++i) lanes[i % kLanes] += a[i];
  return fold(lanes);
}

bool same_shape(const Tensor& a, const Tensor& b) {
  if (a.rank != b.rank) return false;
  for (int i = 0; i < a.rank; ++i) {
    if (a.dim(i) != b.dim(i)) return false;
  }
  return true;
}

float apply_activation(Activation act, float x) {
  switch (act) {
    case Activation::kNone:
      return x;
    case Activation::kSilu:
      return x / (1.0f + std::exp(-x));
    case Activation::kGelu:
      return 0.5f * x * (1.0f + std::erf(x / std::numbers::sqrt2_v<float>));
    case Activation::kGeluTanh: {
      const float inner = std::sqrt(2.0f * std::numbers::inv_pi_v<float>) * (x + 0.044715f * x * x * x);
      return 0.5f * x * (1.0f + std::tanh(inner));
    }
    case Activation::kQuickGelu:
      return x / (1.0f + std::exp(-1.702f * x));
    case Activation::kRelu:
      return x > 0.0f ? x : 0.0f;
  }
  CHECK(false);
}

}  // namespace vlcache
