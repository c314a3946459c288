#include <cmath>
#include <functional>

#include "base/os/threads.h"
#include "ops/ref/ref_impl.h"
#include "ops/ref/rows.h"

namespace vlcache {
namespace {

int64_t last_dim(const Tensor& t) { return t.dim(t.rank - 1); }

// y = normalise(x) for every vector of the last dimension, in f32.
void for_each_vector(const Tensor& x, const Tensor& y, const std::function<void(float*)>& normalise) {
  CHECK(x.rank >= 2 && same_shape(x, y));
  const int64_t width = last_dim(x);
  parallel_ranges(x.rows(), kRowGrain, [&](int64_t begin, int64_t end, int) {
    std::vector<float> row(static_cast<size_t>(x.row_size()));
    for (int64_t i = begin; i < end; ++i) {
      load_row(x, i, row.data());
      for (int64_t at = 0; at < x.row_size(); at += width) normalise(row.data() + at);
      store_row(row.data(), y, i);
    }
  });
}

}  // namespace

void RefBackend::rms_norm(const Tensor& x, const Tensor& w, float eps, const Tensor& y) {
  check_compute(x), check_compute(y);
  const int64_t width = last_dim(x);
  const std::vector<float> weight = vector_of(w, width);
  const bool round = compute_dtype_ == DType::kBF16;
  for_each_vector(x, y, [&](float* v) {
    const float scale = 1.0f / std::sqrt(dot(v, v, width) / static_cast<float>(width) + eps);
    for (int64_t j = 0; j < width; ++j) {
      const float normed = v[j] * scale;
      v[j] = (round ? to_float(to_bf16(normed)) : normed) * weight[static_cast<size_t>(j)];
    }
  });
}

void RefBackend::layer_norm(const Tensor& x, const Tensor& w, const Tensor& b, float eps, const Tensor& y) {
  check_compute(x), check_compute(y);
  const int64_t width = last_dim(x);
  const std::vector<float> weight = vector_of(w, width), bias = vector_of(b, width);
  for_each_vector(x, y, [&](float* v) {
    const float mean = sum(v, width) / static_cast<float>(width);
    for (int64_t j = 0; j < width; ++j) v[j] -= mean;
    const float scale = 1.0f / std::sqrt(dot(v, v, width) / static_cast<float>(width) + eps);
    for (int64_t j = 0; j < width; ++j) {
      v[j] = v[j] * scale * weight[static_cast<size_t>(j)] + bias[static_cast<size_t>(j)];
    }
  });
}

}  // namespace vlcache
