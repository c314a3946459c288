// Calls oneDNN's matmul through a bounded cache of primitives, one thread a call: the loop around it is ours. oneDNN
// 2.6 runs its fast brgemm only for dense x and y, so only dense ones are accepted.
#pragma once

#include <cstdint>
#include <memory>

#include "ops/backend.h"

namespace vlcache::cpu {

class OneDnn {
 public:
  OneDnn();
  ~OneDnn();

  // sums [m, n] = x [m, k] W, all dense, sums in f32.
  struct Shape {
    int64_t m, n, k;
    DType dtype;  // of x and W
    bool packed;  // W: panels of ops/cpu/packed.h, else plain [k, n]
    bool operator==(const Shape&) const = default;
  };
  struct Operands {
    const std::byte* x;
    const std::byte* w;
    float* sums;
  };

  // Prepares a product for `run` on any of n_threads() threads. Null: oneDNN has no fast implementation. Stays valid
  // for the next three calls at least.
  struct Product;
  Product* prepare(const Shape& shape);

  // Threads may run one product at the same time.
  void run(Product& product, const Operands& operands, int thread);

  int64_t scratch_bytes() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace vlcache::cpu
