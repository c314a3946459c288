#include "cache/page_pools.h"

#include <algorithm>

#include "base/error.h"

namespace vlcache {

PagePools::PagePools(Backend& backend, const KvShape& shape, int64_t max_bytes)
    : budget_(std::make_unique<PageBudget>(PageBudget{.max_bytes = max_bytes})) {
  for (int32_t l = 0; l < shape.n_layers(); ++l) {
    const int32_t head_dim = shape.layers[static_cast<size_t>(l)].head_dim;
    if (shape.n_own_heads(l) == 0 || pools_.contains(head_dim)) continue;
    const int64_t page_bytes = backend.kv_page_bytes(shape.codec, head_dim);
    budget_->max_bytes = std::max(budget_->max_bytes, page_bytes);
    const int64_t max_pages = std::clamp<int64_t>(max_bytes / page_bytes, 1, INT32_MAX);
    pools_.try_emplace(head_dim, page_bytes, max_pages, budget_.get());
  }
}

PagePool& PagePools::of(int32_t head_dim) {
  const auto pool = pools_.find(head_dim);
  CHECK(pool != pools_.end());
  return pool->second;
}

void PagePools::trim() {
  for (auto& [head_dim, pool] : pools_) pool.trim();
}

}  // namespace vlcache
