#include "cache/page_pools.h"

#include <algorithm>
#include <limits>

#include "base/error.h"

namespace vlcache {

bool PagePools::Reserves::free_pages() {
  std::ranges::sort(all, {}, &PageReserve::least_priority);
  return std::ranges::any_of(all, &PageReserve::free_pages);
}

double PagePools::Reserves::least_priority() const {
  const auto least = std::ranges::min_element(all, {}, &PageReserve::least_priority);
  return least == all.end() ? std::numeric_limits<double>::infinity() : (*least)->least_priority();
}

PagePools::PagePools(Backend& backend, const KvShape& shape, int64_t max_bytes)
    : backend_(&backend),
      reserves_(std::make_unique<Reserves>()),
      budget_(std::make_unique<PageBudget>(PageBudget{.max_bytes = max_bytes, .reserve = reserves_.get()})) {
  add(shape);
  for (const auto& [key, pool] : pools_) budget_->max_bytes = std::max(budget_->max_bytes, pool.page_bytes());
}

void PagePools::add(const KvShape& shape) {
  for (const KvCodec codec : shape.codecs()) {
    if (std::ranges::find(codecs_, codec) == codecs_.end()) codecs_.push_back(codec);
  }
  for (int32_t l = 0; l < shape.n_layers(); ++l) {
    const KvLayerShape& layer = shape.layers[static_cast<size_t>(l)];
    if (shape.n_own_heads(l) == 0) continue;
    for (const KvCodec codec : {shape.codec, layer.coded.value_or(shape.codec)}) {
      const std::pair key(layer.head_dim, codec);
      if (pools_.contains(key)) continue;
      const int64_t page_bytes = backend_->kv_page_bytes(codec, layer.head_dim);
      const int64_t max_pages = std::clamp<int64_t>(budget_->max_bytes / page_bytes, 1, INT32_MAX);
      pools_.try_emplace(key, page_bytes, max_pages, budget_.get());
    }
  }
}

PagePool& PagePools::of(int32_t head_dim, KvCodec codec) {
  const auto pool = pools_.find({head_dim, codec});
  CHECK(pool != pools_.end());
  return pool->second;
}

TablePools PagePools::of(const KvShape& shape, int32_t layer) {
  if (shape.n_own_heads(layer) == 0) return {};
  const KvLayerShape& l = shape.layers[static_cast<size_t>(layer)];
  TablePools pools{.values = &of(l.head_dim, shape.codec), .value_codec = shape.codec};
  if (l.coded.has_value()) pools.codes = &of(l.head_dim, *l.coded), pools.code_codec = *l.coded;
  return pools;
}

int64_t PagePools::used_bytes(KvCodec codec) const {
  int64_t bytes = 0;
  for (const auto& [key, pool] : pools_) bytes += key.second == codec ? pool.n_used() * pool.page_bytes() : 0;
  return bytes;
}

void PagePools::trim() {
  for (auto& [key, pool] : pools_) pool.trim();
}

}  // namespace vlcache
