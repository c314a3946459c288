// PagePool: the memory of all KV pages of one codec and size. Pages are reference-counted; free ones are reused.
#pragma once

#include <cstdint>
#include <vector>

#include "base/buffer.h"
#include "base/contracts/kv.h"

namespace vlcache {

// Neighbouring pages [begin, end).
struct PageRun {
  int32_t begin = 0;
  int32_t end = 0;
  int32_t size() const { return end - begin; }
};

// Holds pages that running sequences may use when the pools have no free ones.
class PageReserve {
 public:
  virtual ~PageReserve() = default;
  // Frees some of them. Returns false if no more can be freed.
  virtual bool free_pages() = 0;
  // Priority of the next pages to be freed (CacheBudget::Member); infinity: all are held for queued requests.
  virtual double least_priority() const = 0;
};

// Memory that several pools share.
struct PageBudget {
  int64_t max_bytes = 0;
  int64_t used_bytes = 0;
  PageReserve* reserve = nullptr;
};

class PagePool {
 public:
  // Address space for max_pages pages; memory is used only where pages are written. With a `budget` (which must outlive
  // the pool) allocation also fails when the budget is used up.
  PagePool(int64_t page_bytes, int64_t max_pages, PageBudget* budget = nullptr);

  // A page with one reference. Its contents are undefined. When all pages are in use, the budget's reserve is asked to
  // free some; throws Error(kOutOfPages) if it cannot.
  int32_t allocate() { return allocate_run(1).begin; }
  // Up to `wanted` neighbouring pages (one at least), each with one reference. Attention reads neighbours faster than
  // scattered pages: 30 against 22 GB/s a core in bf16. Throws as allocate does.
  PageRun allocate_run(int32_t wanted);
  void retain(int32_t page);
  void release(int32_t page);  // free without references
  int32_t references(int32_t page) const { return references_[static_cast<size_t>(page)]; }

  // Returns the memory of all free pages to the system. Worth it after a large eviction, not in every step.
  void trim();

  KvPool view() const { return {memory_.data(), page_bytes_}; }
  int64_t page_bytes() const { return page_bytes_; }
  int64_t n_used() const { return n_used_; }
  int64_t n_free() const;

 private:
  bool full() const;

  int64_t page_bytes_;
  int64_t max_pages_;
  PageBudget* budget_;
  Buffer memory_;
  std::vector<int32_t> references_;  // of every page ever handed out
  std::vector<PageRun> free_;  // ascending, never touching each other; the last one reaches to the end of the pool
  int64_t n_used_ = 0;
};

}  // namespace vlcache
