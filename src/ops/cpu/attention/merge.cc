#include "ops/cpu/attention/merge.h"

#include "base/os/threads.h"
#include "ops/cpu/attention/attention.h"

namespace vlcache::cpu {
namespace {

template <typename T>
void mix(const T* a, float wa, const T* b, float wb, int64_t d, T* y) {
  for (int64_t c = 0; c < d; ++c) y[c] = from_float<T>(wa * to_float(a[c]) + wb * to_float(b[c]));
}

template <typename T>
void merge_row(const AttentionPart& a, const AttentionPart& b, const AttentionPart& sum, int64_t i) {
  const int64_t n_heads = a.o.dim(1), d = a.o.dim(2);
  for (int64_t h = 0; h < n_heads; ++h) {
    const auto [top, wa, wb] = merge(a.lse.row<float>(i)[h], b.lse.row<float>(i)[h], kLog2e);
    const float total = wa + wb, norm = total > 0.0f ? 1.0f / total : 0.0f;
    mix(a.o.row<T>(i) + h * d, wa * norm, b.o.row<T>(i) + h * d, wb * norm, d, sum.o.row<T>(i) + h * d);
    sum.lse.row<float>(i)[h] = total > 0.0f ? top + std::log(total) : top;
  }
}

}  // namespace

void merge_attention(const AttentionPart& a, const AttentionPart& b, const AttentionPart& sum) {
  const int64_t n = a.o.rows(), n_heads = a.o.dim(1);
  CHECK(a.o.rank == 3 && a.o.dtype == b.o.dtype && a.o.dtype == sum.o.dtype);
  for (const Tensor* o : {&b.o, &sum.o}) CHECK(o->rows() == n && o->row_size() == a.o.row_size());
  for (const Tensor* lse : {&a.lse, &b.lse, &sum.lse}) {
    CHECK(lse->dtype == DType::kF32 && lse->rows() == n && lse->row_size() == n_heads);
  }
  parallel_ranges(n, 8, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      a.o.dtype == DType::kBF16 ? merge_row<bf16>(a, b, sum, i) : merge_row<float>(a, b, sum, i);
    }
  });
}

}  // namespace vlcache::cpu
