// Multiplies with packed weights: by our own kernels or by oneDNN, whichever is faster.
#pragma once

#include <memory>
#include <vector>

#include "base/buffer.h"
#include "ops/backend.h"
#include "ops/cpu/cpu_features.h"

namespace vlcache::cpu {

class OneDnn;

// Memory that grows to the largest request and is kept: nothing is allocated once the sizes repeat.
class Scratch {
 public:
  std::byte* get(int64_t bytes) {
    if (buffer_.bytes() < bytes) {
      buffer_ = Buffer();  // first free, then allocate
      buffer_ = Buffer(bytes);
    }
    return buffer_.data();
  }
  int64_t bytes() const { return buffer_.bytes(); }

 private:
  Buffer buffer_;
};

// Holds primitives and scratch: one product at a time.
class Matmul {
 public:
  Matmul(Isa isa, DType compute_dtype);
  ~Matmul();

  // Backend::matmul. x, y and the residual may have strided rows.
  void run(const Tensor& x, const Weight& w, const Tensor& y, const Epilogue& epilogue);

  // The two implementations that `run` chooses from (matmul.cc has the rule). By panels, a row's result does not depend
  // on the other rows.
  void by_panels(const Tensor& x, const Weight& w, const Tensor& y, const Epilogue& epilogue);
  void by_onednn(const Tensor& x, const Weight& w, const Tensor& y, const Epilogue& epilogue);

  int64_t scratch_bytes() const;

 private:
  bool by_tiles(const Tensor& x, const Weight& w, const Tensor& y, const Epilogue& epilogue, bool packed);
  Tensor dense(const Tensor& x, DType dtype);  // x itself, or a copy

  Isa isa_;
  DType compute_dtype_;
  std::unique_ptr<OneDnn> onednn_;
  Scratch x_copy_;
  std::vector<Scratch> tiles_;  // one per thread
};

}  // namespace vlcache::cpu
