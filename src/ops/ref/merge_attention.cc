#include <algorithm>
#include <cmath>
#include <limits>

#include "base/os/threads.h"
#include "ops/ref/ref_impl.h"
#include "ops/ref/rows.h"

namespace vlcache {

void RefBackend::merge_attention(const Tensor& oa, const Tensor& la, const Tensor& ob, const Tensor& lb,
                                 const Tensor& o, const Tensor& lse) {
  CHECK(oa.rank == 3 && same_shape(oa, ob) && same_shape(oa, o));
  const int64_t n_heads = oa.dim(1), d = oa.dim(2);
  for (const Tensor* t : {&la, &lb, &lse}) {
    CHECK(t->dtype == DType::kF32 && t->rows() == oa.rows() && t->row_size() == n_heads);
  }
  parallel_ranges(oa.rows(), kRowGrain, [&](int64_t begin, int64_t end, int) {
    std::vector<float> a(static_cast<size_t>(d)), b(a.size());
    for (int64_t i = begin; i < end; ++i) {
      for (int64_t h = 0; h < n_heads; ++h) {
        const float log_a = la.row<float>(i)[h], log_b = lb.row<float>(i)[h], top = std::max(log_a, log_b);
        const bool nothing = top == -std::numeric_limits<float>::infinity();
        const float wa = nothing ? 0.0f : std::exp(log_a - top), wb = nothing ? 0.0f : std::exp(log_b - top);
        load_values(oa, i * oa.stride + h * d, d, a.data());
        load_values(ob, i * ob.stride + h * d, d, b.data());
        for (size_t c = 0; c < a.size(); ++c) a[c] = nothing ? 0.0f : (wa * a[c] + wb * b[c]) / (wa + wb);
        store_values(a.data(), d, o, i * o.stride + h * d);
        lse.row<float>(i)[h] = nothing ? top : top + std::log(wa + wb);
      }
    }
  });
}

}  // namespace vlcache
