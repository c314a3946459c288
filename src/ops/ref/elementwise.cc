#include <cstring>

#include "base/os/threads.h"
#include "ops/ref/ref_impl.h"
#include "ops/ref/rows.h"

namespace vlcache {
namespace {

void copy_row(const Tensor& x, int64_t from, const Tensor& y, int64_t to) {
  CHECK(from >= 0 && from < x.rows() && to >= 0 && to < y.rows());
  const int64_t size = dtype_bytes(x.dtype);
  std::memcpy(y.data + to * y.stride * size, x.data + from * x.stride * size, static_cast<size_t>(x.row_size() * size));
}

}  // namespace

void RefBackend::add(const Tensor& a, const Tensor& b, const Tensor& y) {
  check_compute(a), check_compute(b), check_compute(y);
  CHECK(same_shape(a, y) && b.row_size() == a.row_size() && (b.rows() == a.rows() || b.rows() == 1));
  const int64_t width = a.row_size();
  parallel_ranges(a.rows(), kRowGrain, [&](int64_t begin, int64_t end, int) {
    std::vector<float> left(static_cast<size_t>(width)), right(static_cast<size_t>(width));
    for (int64_t i = begin; i < end; ++i) {
      load_row(a, i, left.data());
      load_row(b, b.rows() == 1 ? 0 : i, right.data());
      for (size_t j = 0; j < left.size(); ++j) left[j] += right[j];
      store_row(left.data(), y, i);
    }
  });
}

void RefBackend::scale(const Tensor& x, float factor, const Tensor& y) {
  CHECK(same_shape(x, y) && x.dtype == y.dtype);
  parallel_ranges(x.rows(), kRowGrain, [&](int64_t begin, int64_t end, int) {
    std::vector<float> row(static_cast<size_t>(x.row_size()));
    for (int64_t i = begin; i < end; ++i) {
      load_row(x, i, row.data());
      for (float& value : row) value *= factor;
      store_row(row.data(), y, i);
    }
  });
}

void RefBackend::gated_act(const Tensor& gate_up, Activation act, const Tensor& y) {
  check_compute(gate_up), check_compute(y);
  const int64_t f = y.row_size();
  CHECK(gate_up.rows() == y.rows() && gate_up.row_size() == 2 * f);
  parallel_ranges(y.rows(), kRowGrain, [&](int64_t begin, int64_t end, int) {
    std::vector<float> row(static_cast<size_t>(2 * f));
    for (int64_t i = begin; i < end; ++i) {
      load_row(gate_up, i, row.data());
      float* gate = row.data();
      const float* up = gate + f;
      for (int64_t j = 0; j < f; ++j) gate[j] = apply_activation(act, gate[j]) * up[j];
      store_row(gate, y, i);
    }
  });
}

void RefBackend::activate(const Tensor& x, Activation act, const Tensor& y) {
  check_compute(x), check_compute(y);
  CHECK(same_shape(x, y));
  parallel_ranges(x.rows(), kRowGrain, [&](int64_t begin, int64_t end, int) {
    std::vector<float> row(static_cast<size_t>(x.row_size()));
    for (int64_t i = begin; i < end; ++i) {
      load_row(x, i, row.data());
      for (float& value : row) value = apply_activation(act, value);
      store_row(row.data(), y, i);
    }
  });
}

void RefBackend::gather_rows(const Tensor& x, std::span<const int32_t> rows, const Tensor& y) {
  CHECK(x.dtype == y.dtype && x.row_size() == y.row_size() && y.rows() == static_cast<int64_t>(rows.size()));
  for (size_t i = 0; i < rows.size(); ++i) copy_row(x, rows[i], y, static_cast<int64_t>(i));
}

void RefBackend::scatter_rows(const Tensor& x, std::span<const int32_t> rows, const Tensor& y) {
  CHECK(x.dtype == y.dtype && x.row_size() == y.row_size() && x.rows() == static_cast<int64_t>(rows.size()));
  for (size_t i = 0; i < rows.size(); ++i) copy_row(x, static_cast<int64_t>(i), y, rows[i]);
}

void RefBackend::convert(const Tensor& x, const Tensor& y) {
  CHECK(same_shape(x, y));
  parallel_ranges(x.rows(), kRowGrain, [&](int64_t begin, int64_t end, int) {
    std::vector<float> row(static_cast<size_t>(x.row_size()));
    for (int64_t i = begin; i < end; ++i) {
      load_row(x, i, row.data());
      store_row(row.data(), y, i);
    }
  });
}

}  // namespace vlcache
