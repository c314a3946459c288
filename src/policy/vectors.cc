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

}  // namespace vlcache
