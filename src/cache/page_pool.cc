// Reference counts and the free list.
#include "cache/page_pool.h"

#include <algorithm>
#include <string>

#include "base/error.h"

namespace vlcache {

PagePool::PagePool(int64_t page_bytes, int64_t max_pages)
    : page_bytes_(page_bytes), max_pages_(max_pages), memory_(Buffer::reserve(page_bytes * max_pages)) {
  CHECK(page_bytes > 0 && max_pages > 0 && max_pages <= INT32_MAX);
}

int32_t PagePool::allocate() {
  int32_t page;
  if (!free_.empty()) {
    page = free_.back();
    free_.pop_back();
  } else {
    if (static_cast<int64_t>(references_.size()) == max_pages_) {
      throw Error(ErrorCode::kMemory,
                  "KV cache is full: all " + std::to_string(max_pages_) + " pages (" +
                      std::to_string(max_pages_ * page_bytes_ >> 20) +
                      " MiB) are in use; raise --kv-memory, shorten the prompt or lower --max-tokens");
    }
    page = static_cast<int32_t>(references_.size());
    references_.push_back(0);
  }
  references_[static_cast<size_t>(page)] = 1;
  peak_used_ = std::max(peak_used_, ++n_used_);
  return page;
}

void PagePool::retain(int32_t page) {
  CHECK(references(page) > 0);
  ++references_[static_cast<size_t>(page)];
}

void PagePool::release(int32_t page) {
  CHECK(references(page) > 0);
  if (--references_[static_cast<size_t>(page)] > 0) return;
  free_.push_back(page);
  --n_used_;
}

void PagePool::trim() {
  // Descending, so that the lowest pages are handed out first and the used ones stay together.
  std::sort(free_.begin(), free_.end(), std::greater<>());
  for (size_t i = 0; i < free_.size();) {
    size_t end = i + 1;
    while (end < free_.size() && free_[end] == free_[end - 1] - 1) ++end;
    memory_.release(free_[end - 1] * page_bytes_, (free_[i] + int64_t{1}) * page_bytes_);
    i = end;
  }
}

}  // namespace vlcache
