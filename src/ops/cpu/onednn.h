// oneDNN's matmul behind a bounded cache of primitives. oneDNN 2.6 runs its fast brgemm only for dense x and y, so that
// is what this takes; matmul.cc copies strided rows.
#pragma once

#include <cstdint>
#include <memory>

#include "ops/backend.h"

namespace vlcache::cpu {

class OneDnn {
 public:
  OneDnn();
  ~OneDnn();

  // y = epilogue(x W^T) if oneDNN has a fast implementation for these shapes and the packed layout; else false, y
  // untouched. x, y, residual: dense rows. y: f32 or the dtype of x.
  bool packed_matmul(const Tensor& x, const Weight& w, const Tensor& y, const Epilogue& epilogue);

  // y [m, n] = x [m, k] b [k, n], plain dense f32, whatever implementation there is.
  void plain_matmul(const Tensor& x, const Tensor& b, const Tensor& y);

  int64_t scratch_bytes() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace vlcache::cpu
