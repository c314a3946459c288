#include "cache/page_table.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "cache/strided_rows.h"

namespace vlcache {
namespace {

// Pages a growing row allocates at once: half of what it has, so that short sequences do not hoard, and at most 16,
// beyond which neighbours read no faster.
constexpr int32_t kMaxRun = 16;

}  // namespace

void FreshPages::take(PagePool& pool, int32_t n) {
  try {
    for (int32_t i = 0; i < n; ++i) pages_.push_back({&pool, pool.allocate()});
  } catch (...) {
    give_back();
    throw;
  }
}

int32_t FreshPages::next() {
  CHECK(next_ < pages_.size());
  return pages_[next_++].id;
}

void FreshPages::give_back() {
  for (; next_ < pages_.size(); ++next_) pages_[next_].pool->release(pages_[next_].id);
  pages_.clear();
  next_ = 0;
}

PageTable::PageTable(PagePool* pool, int32_t n_heads)
    : pool_(pool), n_pages_(static_cast<size_t>(n_heads), 0), spare_(static_cast<size_t>(n_heads)) {
  set_stride(1);
}

PageTable PageTable::fork() const {
  PageTable copy(pool_, static_cast<int32_t>(n_pages_.size()));
  copy.set_stride(stride_);
  copy.pages_ = pages_;
  for (int32_t h = 0; h < static_cast<int32_t>(n_pages_.size()); ++h) {
    for (int32_t i = 0; i < n_pages(h); ++i) pool_->retain(row(h)[i]);
  }
  copy.n_pages_ = n_pages_;
  return copy;
}

void PageTable::set_stride(int32_t stride) {
  if (stride == stride_) return;
  CHECK(std::ranges::all_of(n_pages_, [&](int32_t n) { return n <= stride; }));
  old_row_.resize(static_cast<size_t>(stride));
  left_.reserve(static_cast<size_t>(stride));
  pages_ = stride_ > 0 ? with_stride(pages_, stride_, stride)
                       : std::vector<int32_t>(n_pages_.size() * static_cast<size_t>(stride));
  stride_ = stride;
}

int64_t PageTable::n_pages() const { return std::accumulate(n_pages_.begin(), n_pages_.end(), int64_t{0}); }

bool PageTable::any_shared() const {
  for (int32_t h = 0; h < static_cast<int32_t>(n_pages_.size()); ++h) {
    for (int32_t i = 0; i < n_pages(h); ++i) {
      if (pool_->references(row(h)[i]) > 1) return true;
    }
  }
  return false;
}

void PageTable::for_each_page(FunctionRef<void(int32_t page)> visit) const {
  for (int32_t h = 0; h < static_cast<int32_t>(n_pages_.size()); ++h) {
    for (int32_t i = 0; i < n_pages(h); ++i) visit(row(h)[i]);
    const PageRun& spare = spare_[static_cast<size_t>(h)];
    for (int32_t page = spare.begin; page < spare.end; ++page) visit(page);
  }
}

void PageTable::extend(int32_t head, int32_t n) {
  CHECK(n <= stride_);
  int32_t& have = n_pages_[static_cast<size_t>(head)];
  PageRun& spare = spare_[static_cast<size_t>(head)];
  while (have < n) {
    if (spare.size() == 0) spare = pool_->allocate_run(std::max(n - have, std::min(kMaxRun, have / 2)));
    row_of(head)[have++] = spare.begin++;
  }
}

void PageTable::share(int32_t head, int32_t page) {
  int32_t& have = n_pages_[static_cast<size_t>(head)];
  CHECK(have < stride_ && spare_[static_cast<size_t>(head)].size() == 0);
  pool_->retain(page);
  row_of(head)[have++] = page;
}

void PageTable::shorten(int32_t head, int32_t n) {
  int32_t& have = n_pages_[static_cast<size_t>(head)];
  if (have <= n) return;
  PageRun& spare = spare_[static_cast<size_t>(head)];
  while (spare.size() > 0) pool_->release(spare.begin++);
  while (have > n) pool_->release(row(head)[--have]);
}

void PageTable::clear() {
  for (int32_t h = 0; h < static_cast<int32_t>(n_pages_.size()); ++h) {
    PageRun& spare = spare_[static_cast<size_t>(h)];
    while (spare.size() > 0) pool_->release(spare.begin++);
    shorten(h, 0);
  }
}

int32_t PageTable::mark_copies(int32_t head, std::span<PageLink> links) const {
  int32_t n = 0;
  for (PageLink& link : links) {
    CHECK(0 <= link.source && link.source < n_pages(head));
    link.copy = link.write && pool_->references(row(head)[link.source]) > 1;
    n += link.copy ? 1 : 0;
  }
  return n;
}

void PageTable::relink(int32_t head, const NewRow& to, FreshPages& fresh) {
  int32_t* pages = row_of(head);
  int32_t& n = n_pages_[static_cast<size_t>(head)];
  std::copy_n(pages, n, old_row_.begin());
  left_.clear();
  int32_t next = to.first, unnamed = to.first;
  const auto leave_until = [&](int32_t end) {
    for (; unnamed < end; ++unnamed) left_.push_back(old_row_[static_cast<size_t>(unnamed)]);
  };
  for (const PageLink& link : to.links) {  // sources ascend
    leave_until(link.source);
    pages[next++] = link.copy ? fresh.next() : old_row_[static_cast<size_t>(link.source)];
    unnamed = link.source + 1;
  }
  leave_until(n);
  if (to.keep_rest) {
    for (int32_t page : left_) pages[next++] = page;
    left_.clear();
  }
  for (const PageLink& link : to.links) {
    if (link.copy) left_.push_back(old_row_[static_cast<size_t>(link.source)]);
  }
  n = next;
}

void PageTable::release_old() {
  for (int32_t page : left_) pool_->release(page);
  left_.clear();
}

}  // namespace vlcache
