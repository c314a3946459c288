#include <cstring>

#include "base/threads.h"
#include "ops/ref/ref_impl.h"
#include "ops/ref/rows.h"

namespace vlcache {
namespace {

// The rows of a weight, packed or not.
Tensor rows_of(const Weight& w) { return w.packed ? Tensor(w.owned.data(), w.dtype, {w.n_out, w.n_in}) : w.rows; }

}  // namespace

// Packed here means: plain rows in the compute dtype.
Weight RefBackend::pack(std::span<const Tensor> parts) {
  CHECK(!parts.empty());
  Weight w{.n_in = parts[0].dim(1), .dtype = compute_dtype_, .packed = true};
  for (const Tensor& part : parts) {
    CHECK(part.rank == 2 && part.dim(1) == w.n_in);
    w.n_out += part.rows();
  }
  w.owned = Buffer(w.n_out * w.n_in * dtype_bytes(w.dtype));
  Tensor all = rows_of(w);
  for (const Tensor& part : parts) {
    convert(part, all.slice_rows(0, part.rows()));
    all = all.slice_rows(part.rows(), all.rows());
  }
  return w;
}

void RefBackend::matmul(const Tensor& x, const Weight& w, const Tensor& y, const Epilogue& epilogue) {
  const int64_t n = x.rows(), n_in = w.n_in, n_out = w.n_out;
  check_compute(x);
  CHECK(x.row_size() == n_in && y.rows() == n && y.row_size() == n_out);
  CHECK(y.dtype == compute_dtype_ || y.dtype == DType::kF32);
  const Tensor* residual = epilogue.residual;
  if (residual != nullptr) CHECK(residual->rows() == n && residual->row_size() == n_out && residual->dtype == y.dtype);
  std::vector<float> bias(static_cast<size_t>(n_out));
  if (epilogue.bias != nullptr) bias = vector_of(*epilogue.bias, n_out);

  std::vector<float> x32(static_cast<size_t>(n * n_in));
  for (int64_t i = 0; i < n; ++i) load_row(x, i, x32.data() + i * n_in);
  const Tensor rows = rows_of(w);
  parallel_ranges(n_out, kRowGrain, [&](int64_t begin, int64_t end, int) {
    std::vector<float> weight(static_cast<size_t>(n_in));
    for (int64_t o = begin; o < end; ++o) {
      load_row(rows, o, weight.data());
      for (int64_t i = 0; i < n; ++i) {
        float value = dot(x32.data() + i * n_in, weight.data(), n_in) + bias[static_cast<size_t>(o)];
        value = apply_activation(epilogue.act, value);
        if (residual != nullptr) {
          float r;
          load_values(*residual, i * residual->stride + o, 1, &r);
          value += r;
        }
        store_values(&value, 1, y, i * y.stride + o);
      }
    }
  });
}

void RefBackend::embed(std::span<const int32_t> ids, const Weight& w, const Tensor& y) {
  check_compute(y);
  CHECK(y.rows() == static_cast<int64_t>(ids.size()) && y.row_size() == w.n_in);
  const Tensor rows = rows_of(w);
  std::vector<float> row(static_cast<size_t>(w.n_in));
  for (size_t i = 0; i < ids.size(); ++i) {
    CHECK(ids[i] >= 0 && ids[i] < w.n_out);
    load_row(rows, ids[i], row.data());
    store_row(row.data(), y, static_cast<int64_t>(i));
  }
}

}  // namespace vlcache
