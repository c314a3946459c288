// Plain loops.
#include "policy/vectors.h"

namespace vlcache {

float inner_product(const float* a, const float* b, int64_t n) {
  float sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

void add_scaled(float factor, const float* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] += factor * x[i];
}

std::vector<float> transposed(std::span<const float> a, int64_t rows, int64_t columns) {
  std::vector<float> b(a.size());
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j)
      b[static_cast<size_t>(j * rows + i)] = a[static_cast<size_t>(i * columns + j)];
  }
  return b;
}

}  // namespace vlcache
