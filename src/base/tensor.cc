#include "base/tensor.h"

namespace vlcache {

Tensor::Tensor(void* data_in, DType dtype_in, std::initializer_list<int64_t> dims)
    : data(static_cast<std::byte*>(data_in)), dtype(dtype_in), rank(static_cast<int>(dims.size())) {
  CHECK(dims.size() <= shape.size());
  size_t i = 0;
  for (int64_t d : dims) shape[i++] = d;
  stride = row_size();
}

int64_t Tensor::row_size() const {
  int64_t n = 1;
  for (int i = 1; i < rank; ++i) n *= dim(i);
  return n;
}

Tensor Tensor::slice_rows(int64_t begin, int64_t end) const {
  CHECK(0 <= begin && begin <= end && end <= rows());
  Tensor t = *this;
  t.data += begin * stride * dtype_bytes(dtype);
  t.shape[0] = end - begin;
  return t;
}

Tensor Tensor::columns(int64_t begin, int64_t end) const {
  CHECK(rank == 2 && 0 <= begin && begin <= end && end <= shape[1]);
  Tensor t = *this;
  t.data += begin * dtype_bytes(dtype);
  t.shape[1] = end - begin;
  return t;
}

Tensor Tensor::view(std::initializer_list<int64_t> dims) const {
  Tensor t(data, dtype, dims);
  CHECK(t.numel() == numel());
  if (!dense()) {
    CHECK(t.shape[0] == shape[0]);
    t.stride = stride;
  }
  return t;
}

std::string Tensor::describe() const {
  std::string s(dtype_name(dtype));
  s += "[";
  for (int i = 0; i < rank; ++i) s += (i > 0 ? ", " : "") + std::to_string(dim(i));
  return s + "]";
}

}  // namespace vlcache
