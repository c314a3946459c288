#include <cstring>

#include "base/error.h"
#include "ops/cpu/row_ops.h"

namespace vlcache::cpu {
namespace {

void copy_row(const Tensor& x, int64_t from, const Tensor& y, int64_t to) {
  CHECK(0 <= from && from < x.rows() && 0 <= to && to < y.rows());
  const int64_t size = dtype_bytes(x.dtype);
  std::memcpy(y.data + to * y.stride * size, x.data + from * x.stride * size, static_cast<size_t>(x.row_size() * size));
}

template <typename T>
void gather_values(const Tensor& x, std::span<const int32_t> columns, const Tensor& y) {
  for_row_ranges(y.rows(), y.row_size(), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const T* from = x.row<T>(i);
      T* to = y.row<T>(i);
      for (const int32_t column : columns) *to++ = from[column];
    }
  });
}

}  // namespace

void gather_rows(const Tensor& x, std::span<const int32_t> rows, const Tensor& y) {
  CHECK(x.dtype == y.dtype && x.row_size() == y.row_size() && y.rows() == static_cast<int64_t>(rows.size()));
  for_row_ranges(y.rows(), y.row_size(), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) copy_row(x, rows[static_cast<size_t>(i)], y, i);
  });
}

void gather_columns(const Tensor& x, std::span<const int32_t> columns, const Tensor& y) {
  CHECK(x.dtype == y.dtype && x.rows() == y.rows() && x.row_size() == y.row_size());
  CHECK(y.row_size() == static_cast<int64_t>(columns.size()));
  dtype_bytes(x.dtype) == 2 ? gather_values<uint16_t>(x, columns, y) : gather_values<uint32_t>(x, columns, y);
}

void scatter_rows(const Tensor& x, std::span<const int32_t> rows, const Tensor& y) {
  CHECK(x.dtype == y.dtype && x.row_size() == y.row_size() && x.rows() == static_cast<int64_t>(rows.size()));
  for_row_ranges(x.rows(), x.row_size(), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) copy_row(x, i, y, rows[static_cast<size_t>(i)]);
  });
}

}  // namespace vlcache::cpu
