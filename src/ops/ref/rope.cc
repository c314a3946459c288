// Rotary position embedding, halves convention.
#include "base/os/threads.h"
#include "ops/ref/ref_impl.h"
#include "ops/ref/rows.h"

namespace vlcache {

void RefBackend::rope(const Tensor& x, const Tensor& cos, const Tensor& sin, const Tensor& y) {
  check_compute(x), check_compute(y);
  CHECK(x.rank == 3 && same_shape(x, y) && x.dim(2) % 2 == 0);
  const int64_t d = x.dim(2), half = d / 2;
  for (const Tensor* table : {&cos, &sin}) {
    CHECK(table->dtype == DType::kF32 && table->rows() == x.rows() && table->row_size() == half);
  }
  parallel_ranges(x.rows(), kRowGrain, [&](int64_t begin, int64_t end, int) {
    std::vector<float> row(static_cast<size_t>(x.row_size()));
    for (int64_t i = begin; i < end; ++i) {
      load_row(x, i, row.data());
      const float* c = cos.row<float>(i);
      const float* s = sin.row<float>(i);
      for (int64_t at = 0; at < x.row_size(); at += d) {
        float* low = row.data() + at;
        float* high = low + half;
        for (int64_t j = 0; j < half; ++j) {
          const float a = low[j], b = high[j];
          low[j] = a * c[j] - b * s[j];
          high[j] = b * c[j] + a * s[j];
        }
      }
      store_row(row.data(), y, i);
    }
  });
}

}  // namespace vlcache
