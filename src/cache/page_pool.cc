#include "cache/page_pool.h"

#include <algorithm>
#include <string>

#include "base/error.h"

namespace vlcache {
namespace {
constexpr size_t kRunsToTry = 64;  // a fragmented pool is not searched forever for a long run
}

PagePool::PagePool(int64_t page_bytes, int64_t max_pages, PageBudget* budget)
    : page_bytes_(page_bytes),
      max_pages_(max_pages),
      budget_(budget),
      memory_(Buffer::reserve(page_bytes * max_pages)) {
  CHECK(page_bytes > 0 && max_pages > 0 && max_pages <= INT32_MAX);
  // Address space only: no entry moves later, and freeing a page never allocates.
  references_.reserve(static_cast<size_t>(max_pages));
  free_.reserve(static_cast<size_t>(max_pages) / 2 + 2);
  free_.push_back({0, static_cast<int32_t>(max_pages)});
}

bool PagePool::full() const {
  return free_.empty() || (budget_ != nullptr && budget_->max_bytes - budget_->used_bytes < page_bytes_);
}

PageRun PagePool::allocate_run(int32_t wanted) {
  while (full() && budget_ != nullptr && budget_->reserve != nullptr && budget_->reserve->free_pages()) {
  }
  if (full()) {
    const int64_t bytes = budget_ != nullptr ? budget_->max_bytes : max_pages_ * page_bytes_;
    throw Error(ErrorCode::kOutOfPages, "KV cache is full: all " + std::to_string(bytes >> 20) +
                                            " MiB of pages are in use; raise --kv-memory, shorten the prompt or lower "
                                            "--max-tokens");
  }
  if (budget_ != nullptr) {
    wanted = static_cast<int32_t>(std::min<int64_t>(wanted, (budget_->max_bytes - budget_->used_bytes) / page_bytes_));
  }
  // The first run that is long enough, else the longest of those examined.
  size_t best = 0;
  for (size_t i = 0; i < std::min(free_.size(), kRunsToTry) && free_[best].size() < wanted; ++i) {
    if (free_[i].size() > free_[best].size()) best = i;
  }
  if (free_[best].size() < wanted) best = free_.back().size() > free_[best].size() ? free_.size() - 1 : best;
  PageRun& from = free_[best];
  const PageRun run{from.begin, from.begin + std::min(wanted, from.size())};
  from.begin = run.end;
  if (from.size() == 0) free_.erase(free_.begin() + static_cast<int64_t>(best));

  if (static_cast<int64_t>(references_.size()) < run.end) references_.resize(static_cast<size_t>(run.end), 0);
  std::fill_n(references_.begin() + run.begin, run.size(), 1);
  n_used_ += run.size();
  if (budget_ != nullptr) budget_->used_bytes += run.size() * page_bytes_;
  return run;
}

void PagePool::retain(int32_t page) {
  const CheckScope shared(CheckScope::Failure::kAbort);
  CHECK(references(page) > 0);
  ++references_[static_cast<size_t>(page)];
}

void PagePool::release(int32_t page) {
  const CheckScope shared(CheckScope::Failure::kAbort);
  CHECK(references(page) > 0);
  if (--references_[static_cast<size_t>(page)] > 0) return;
  --n_used_;
  if (budget_ != nullptr) budget_->used_bytes -= page_bytes_;
  const auto next = std::ranges::lower_bound(free_, page, {}, &PageRun::begin);
  const bool joins_next = next != free_.end() && next->begin == page + 1;
  const bool joins_previous = next != free_.begin() && std::prev(next)->end == page;
  if (joins_next && joins_previous) {
    std::prev(next)->end = next->end;
    free_.erase(next);
  } else if (joins_next) {
    next->begin = page;
  } else if (joins_previous) {
    std::prev(next)->end = page + 1;
  } else {
    free_.insert(next, {page, page + 1});
  }
}

int64_t PagePool::n_free() const {
  int64_t n = 0;
  for (const PageRun& run : free_) n += run.size();
  return n;
}

void PagePool::trim() {
  for (const PageRun& run : free_) {
    const int64_t end = std::min<int64_t>(run.end, static_cast<int64_t>(references_.size()));  // beyond: never touched
    memory_.release(run.begin * page_bytes_, end * page_bytes_);
  }
}

}  // namespace vlcache
