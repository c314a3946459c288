// PagePools: the pages of a model, one pool for each head size and codec of its layers, all within one memory budget.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "cache/kv_shape.h"
#include "cache/page_pool.h"
#include "cache/page_table.h"
#include "ops/backend.h"

namespace vlcache {

class PagePools {
 public:
  // At most max_bytes of pages, whatever their sizes, and at least one page of each size.
  PagePools(Backend& backend, const KvShape& shape, int64_t max_bytes);

  PagePool& of(int32_t head_dim, KvCodec codec);  // CHECKs that the shape has such pages
  // The pools of a layer's pages, in the forms that it has.
  TablePools of(const KvShape& shape, int32_t layer);
  // Returns the memory of all free pages to the system.
  void trim();
  // The reserve that is asked to free pages before allocating throws; null: none. It must outlive the pools' use.
  void set_reserve(PageReserve* reserve) { budget_->reserve = reserve; }
  int64_t used_bytes() const { return budget_->used_bytes; }
  int64_t used_bytes(KvCodec codec) const;  // pages with this codec alone
  int64_t max_bytes() const { return budget_->max_bytes; }

 private:
  std::unique_ptr<PageBudget> budget_;                     // pools point to it, also after a move
  std::map<std::pair<int32_t, KvCodec>, PagePool> pools_;  // by head size and codec
};

}  // namespace vlcache
