// PagePools: the pages of a model, one pool for each head size and codec of its layers, all within one memory budget.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "cache/kv_shape.h"
#include "cache/page_pool.h"
#include "cache/page_table.h"
#include "ops/backend.h"

namespace vlcache {

class PagePools {
 public:
  // At most max_bytes of pages, whatever their sizes, and at least one page of each size of this shape. The backend
  // must outlive it.
  PagePools(Backend& backend, const KvShape& shape, int64_t max_bytes);

  // Adds the pools that pages of another codec need, within the same budget.
  void add(const KvShape& shape);
  PagePool& of(int32_t head_dim, KvCodec codec);  // CHECKs that a shape has such pages
  // The pools of a layer's pages, in the forms that it has.
  TablePools of(const KvShape& shape, int32_t layer);
  // Returns the memory of all free pages to the system.
  void trim();
  // Before allocating throws, reserves are asked to free pages, the least priority first. Each must be removed before
  // it is destroyed.
  void add_reserve(PageReserve& reserve) { reserves_->all.push_back(&reserve); }
  void remove_reserve(PageReserve& reserve) { std::erase(reserves_->all, &reserve); }
  int64_t used_bytes() const { return budget_->used_bytes; }
  int64_t used_bytes(KvCodec codec) const;                     // pages with this codec alone
  std::span<const KvCodec> codecs() const { return codecs_; }  // so far
  int64_t max_bytes() const { return budget_->max_bytes; }

 private:
  struct Reserves final : PageReserve {
    bool free_pages() override;
    double least_priority() const override;
    std::vector<PageReserve*> all;
  };

  Backend* backend_;
  std::unique_ptr<Reserves> reserves_;
  std::unique_ptr<PageBudget> budget_;                     // pools point to it, also after a move
  std::map<std::pair<int32_t, KvCodec>, PagePool> pools_;  // by head size and codec
  std::vector<KvCodec> codecs_;
};

}  // namespace vlcache
