// QueryMoments estimates the mean and covariance of queries before their rotation, and so what later queries attend to.
// Source: Expected Attention, as ExpectedAttentionPress of kvpress computes it.
#pragma once

#include <cstdint>
#include <vector>

#include "base/contracts/layer_hooks.h"
#include "base/tensor.h"
#include "ops/backend.h"

namespace vlcache {

// Of one layer with H query heads of size d.
class QueryMoments {
 public:
  // Of the rows whose tokens lie in [begin, end).
  void add(Backend& backend, const Observed& observed, int32_t begin, int32_t end);
  // Mean [H, d] and covariance [H, d, d] f32, rotated by the mean rotation of text at
  // [position, position + n). Zeros
  // if there were no rows.
  void expect(int32_t position, int32_t n, const Tensor& mean, const Tensor& covariance) const;

 private:
  int64_t n_heads_ = 0, d_ = 0, n_rows_ = 0;
  std::vector<float> frequencies_;  // as Observed
  std::vector<float> shift_;        // [H, d] a first mean: squares of differences from it are small
  std::vector<float> sums_;         // [H, d] of q - shift
  std::vector<float> products_;     // [H, d, d] of (q - shift)(q - shift)^T, the upper triangle
};

}  // namespace vlcache
