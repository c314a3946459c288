// PageTable: the pages of one layer of one sequence, a row of page ids per kv head. It shares pages, and replaces a
// shared page before it is written.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/contracts/kv.h"
#include "base/function_ref.h"
#include "cache/page_pool.h"

namespace vlcache {

constexpr int32_t pages_for(int64_t n_slots) { return static_cast<int32_t>((n_slots + kPageSlots - 1) / kPageSlots); }

// The new state of one page of a row when slots move.
struct PageLink {
  int32_t source = 0;  // index, in the row before, of the page that moves to this place
  bool write = false;  // slots are going to be written into it
  bool copy = false;   // ... and another table holds it too, so a fresh page gets the place and the slots are copied
};

// Pages taken before anything moves, one for each shared page that will be written, so that running out of pages
// changes nothing.
class FreshPages {
 public:
  FreshPages() = default;
  ~FreshPages() { give_back(); }
  FreshPages(FreshPages&&) noexcept = default;
  FreshPages& operator=(FreshPages&&) = delete;
  FreshPages(const FreshPages&) = delete;

  void reserve(int64_t n) { pages_.reserve(static_cast<size_t>(n)); }
  // n more pages of the pool. Throws Error(kOutOfPages) when it is exhausted; no page is held then.
  void take(PagePool& pool, int32_t n);
  int32_t next();  // in the order in which they were taken; the caller's from now on
  void give_back();

 private:
  struct Page {
    PagePool* pool;
    int32_t id;
  };
  std::vector<Page> pages_;
  size_t next_ = 0;
};

class PageTable {
 public:
  PageTable(PagePool* pool, int32_t n_heads);  // a pool is needed only if there are heads
  ~PageTable() { clear(); }
  PageTable(PageTable&&) noexcept = default;
  PageTable& operator=(PageTable&&) = delete;
  PageTable(const PageTable&) = delete;
  // A table of the same pages, which are shared from now on.
  PageTable fork() const;

  PagePool& pool() const { return *pool_; }
  int32_t stride() const { return stride_; }
  // Makes room for this many pages a row, at least the pages in use. Rows move if the room changes.
  void set_stride(int32_t stride);

  const int32_t* pages() const { return pages_.data(); }  // [n_heads, stride]
  const int32_t* row(int32_t head) const { return pages_.data() + int64_t{head} * stride_; }
  int32_t n_pages(int32_t head) const { return n_pages_[static_cast<size_t>(head)]; }
  int64_t n_pages() const;
  int64_t table_bytes() const { return static_cast<int64_t>(pages_.capacity() * sizeof(int32_t)); }
  bool any_shared() const;
  // Visits the pages that the table holds: in its rows, and taken ahead.
  void for_each_page(FunctionRef<void(int32_t page)> visit) const;

  // Makes a row at least n pages long, of neighbouring pages where possible. Throws Error(kOutOfPages) when the pool is
  // exhausted; the row keeps the pages it got until then.
  void extend(int32_t head, int32_t n);
  // Appends a page of another row of the same pool to a row; the page is shared from now on.
  void share(int32_t head, int32_t page);
  // Makes a row at most n pages long and frees the other pages, including pages allocated ahead.
  void shorten(int32_t head, int32_t n);
  void clear();

  // Copy on write, in steps so that running out of pages changes nothing:
  // 1. mark_copies marks the links that need a fresh page, and returns their number;
  int32_t mark_copies(int32_t head, std::span<PageLink> links) const;
  // 2. relink replaces the row: its first `first` pages as they are, then one page a link, then, with `keep_rest`, the
  //    pages that no link names (a reserve). `fresh` has a page for every copy;
  struct NewRow {
    int32_t first = 0;
    std::span<const PageLink> links;
    bool keep_rest = false;
  };
  void relink(int32_t head, const NewRow& to, FreshPages& fresh);
  // 3. K and V can be read through the old row until release_old frees the pages that left it.
  const int32_t* old_row() const { return old_row_.data(); }
  void release_old();

 private:
  int32_t* row_of(int32_t head) { return pages_.data() + int64_t{head} * stride_; }

  PagePool* pool_;
  int32_t stride_ = 0;
  std::vector<int32_t> pages_;    // [n_heads, stride], the first n_pages of a row are in use
  std::vector<int32_t> n_pages_;  // [n_heads]
  std::vector<PageRun> spare_;    // [n_heads] pages taken ahead, so that a head's pages lie together; never written
  std::vector<int32_t> old_row_;  // [stride] during a relinking
  std::vector<int32_t> left_;     // pages removed from the row
};

}  // namespace vlcache
