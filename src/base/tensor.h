// Tensor: a view of up to four dimensions. It owns nothing and is copied freely.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "base/dtype.h"
#include "base/error.h"

namespace vlcache {

// Shapes are outermost first. The inner dimensions are dense; consecutive indices of the outermost one lie `stride`
// elements apart (so the q, k, v columns of one fused projection are three views of the same rows).
struct Tensor {
  std::byte* data = nullptr;
  DType dtype = DType::kF32;
  int rank = 0;
  std::array<int64_t, 4> shape{};
  int64_t stride = 0;  // elements between consecutive rows; dense when equal to row_size()

  Tensor() = default;
  Tensor(void* data, DType dtype, std::initializer_list<int64_t> dims);

  int64_t dim(int i) const { return shape[static_cast<size_t>(i)]; }
  int64_t rows() const { return rank == 0 ? 0 : shape[0]; }
  int64_t row_size() const;  // elements of one row: the product of the inner dimensions
  int64_t numel() const { return rows() * row_size(); }
  int64_t bytes() const { return numel() * dtype_bytes(dtype); }
  bool dense() const { return stride == row_size() || rows() <= 1; }
  bool empty() const { return data == nullptr; }

  template <typename T>
  T* as() const {
    CHECK(sizeof(T) == static_cast<size_t>(dtype_bytes(dtype)));
    return reinterpret_cast<T*>(data);
  }
  template <typename T>
  T* row(int64_t i) const {
    return as<T>() + i * stride;
  }

  Tensor slice_rows(int64_t begin, int64_t end) const;     // rows [begin, end)
  Tensor columns(int64_t begin, int64_t end) const;        // of a rank-2 view: [rows, end - begin], same stride
  Tensor view(std::initializer_list<int64_t> dims) const;  // other shape, same first dimension unless dense
  std::string describe() const;                            // "bf16[512, 2048]"
};

// For arguments that may be null: null for an empty tensor.
inline const Tensor* or_null(const Tensor& t) { return t.empty() ? nullptr : &t; }

}  // namespace vlcache
