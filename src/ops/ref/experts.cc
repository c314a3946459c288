// Mixtures of experts: which experts a row goes to, and the sum of what they give back.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/os/threads.h"
#include "ops/ref/ref_impl.h"
#include "ops/ref/rows.h"

namespace vlcache {

void RefBackend::route(const Tensor& logits, const Tensor& ids, const Tensor& weights) {
  check_compute(logits);
  const int64_t n_experts = logits.row_size(), k = ids.row_size();
  CHECK(ids.dtype == DType::kI32 && weights.dtype == DType::kF32 && 1 <= k && k <= n_experts);
  CHECK(ids.rows() == logits.rows() && weights.rows() == logits.rows() && weights.row_size() == k);
  std::vector<float> row(static_cast<size_t>(n_experts));
  std::vector<int32_t> order(row.size());
  for (int64_t i = 0; i < logits.rows(); ++i) {
    load_row(logits, i, row.data());
    const auto logit = [&](int32_t expert) { return row[static_cast<size_t>(expert)]; };
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, std::greater(), logit);
    const float largest = logit(order[0]);
    double all = 0, chosen = 0;
    for (const float x : row) all += std::exp(static_cast<double>(x) - largest);
    const auto share = [&](int64_t j) {
      return std::exp(static_cast<double>(logit(order[static_cast<size_t>(j)])) - largest) / all;
    };
    for (int64_t j = 0; j < k; ++j) chosen += share(j);
    for (int64_t j = 0; j < k; ++j) {
      const auto weight = static_cast<float>(share(j) / chosen);
      ids.row<int32_t>(i)[j] = order[static_cast<size_t>(j)];
      weights.row<float>(i)[j] = compute_dtype() == DType::kBF16 ? to_float(to_bf16(weight)) : weight;
    }
  }
}

void RefBackend::combine_rows(const Tensor& x, const Tensor& rows, const Tensor& at, const Tensor& weights,
                              const Tensor& y) {
  check_compute(x), check_compute(rows), check_compute(y);
  CHECK(same_shape(x, y) && rows.row_size() == x.row_size() && at.dtype == DType::kI32);
  CHECK(at.rows() == x.rows() && weights.rows() == x.rows() && weights.row_size() == at.row_size());
  parallel_ranges(x.rows(), kRowGrain, [&](int64_t begin, int64_t end, int) {
    std::vector<float> sum(static_cast<size_t>(x.row_size())), row(sum.size());
    for (int64_t i = begin; i < end; ++i) {
      load_row(x, i, sum.data());
      for (int64_t j = 0; j < at.row_size(); ++j) {
        const int32_t from = at.row<int32_t>(i)[j];
        CHECK(0 <= from && from < rows.rows());
        load_row(rows, from, row.data());
        for (size_t c = 0; c < sum.size(); ++c) sum[c] += weights.row<float>(i)[j] * row[c];
      }
      store_row(sum.data(), y, i);
    }
  });
}

}  // namespace vlcache
