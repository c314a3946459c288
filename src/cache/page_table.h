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
  bool copy = false;   // ... and it cannot be: a fresh page gets the place, and the slots are copied. Another table
                       // holds the page, too, or it has values where codes are needed
  bool coded = false;  // the page at this place has codes: some slot of it had
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

// Where a table's pages come from: pages of values, as K and V are written, and of codes, which full pages become.
struct TablePools {
  PagePool* values = nullptr;  // needed only if there are heads
  PagePool* codes = nullptr;   // null: pages stay as they are
  KvCodec value_codec = KvCodec::kBF16;
  KvCodec code_codec = KvCodec::kBF16;
};

// The forms in which the K and V of a page's slots exist: ids in the pools; -1: not in this one.
struct PageForms {
  int32_t born = -1;  // as they were written
  int32_t coded = -1;
};

// size: a table in two forms; each change of a row changes both.
class PageTable {
 public:
  PageTable(const TablePools& pools, int32_t n_heads);
  ~PageTable() { clear(); }
  PageTable(PageTable&&) noexcept = default;
  PageTable& operator=(PageTable&&) = delete;
  PageTable(const PageTable&) = delete;
  // A table of the same pages, which are shared from now on.
  PageTable fork() const;

  const TablePools& pools() const { return pools_; }
  int32_t stride() const { return stride_; }
  // Makes room for this many pages a row, at least the pages in use. Rows move if the room changes.
  void set_stride(int32_t stride);

  // [n_heads, stride], as the newest rows see them; the codec of each, null: all have values; and of coded pages the
  // pages of values that are still there, -1: none, null: none anywhere (KvView).
  const int32_t* pages() const { return pages_.data(); }
  const uint8_t* codecs() const { return two_forms() ? codecs_.data() : nullptr; }
  const int32_t* born() const { return two_forms() ? born_.data() : nullptr; }
  const int32_t* row(int32_t head) const { return pages_.data() + int64_t{head} * stride_; }
  const uint8_t* row_codecs(int32_t head) const { return two_forms() ? codecs_.data() + at(head, 0) : nullptr; }
  bool any_coded() const { return n_coded_ > 0; }
  bool is_coded(int32_t head, int32_t i) const {
    return n_coded_ > 0 && codecs_[at(head, i)] == static_cast<uint8_t>(pools_.code_codec);
  }
  PageForms forms(int32_t head, int32_t i) const;
  // Whether page i is there; in the place of others a row has -1.
  bool is_held(int32_t head, int32_t i) const { return i < n_pages(head) && pages_[at(head, i)] >= 0; }
  int32_t n_pages(int32_t head) const { return n_pages_[static_cast<size_t>(head)]; }
  int64_t n_pages() const;
  int64_t table_bytes() const;
  int64_t bytes() const;               // sums the pages in its rows, in all their forms
  int64_t bytes(KvCodec codec) const;  // forms with this codec alone
  int64_t seen_coded_bytes() const;    // pages that the newest rows see as codes
  bool any_shared() const;
  // Whether another row shares one of pages [begin, end), all of them held, in the form that the newest rows see.
  bool any_shared(int32_t head, int32_t begin, int32_t end) const;
  // Visits the pages that the table holds: in its rows, in all their forms, and taken ahead.
  void for_each_page(FunctionRef<void(const PagePool& pool, int32_t page)> visit) const;

  // Makes a row at least n pages long, of neighbouring pages where possible. Throws Error(kOutOfPages) when the pool is
  // exhausted; the row keeps the pages it got until then.
  void extend(int32_t head, int32_t n);
  // Appends a page of another row of the same pools to a row, in the forms that are there; they are shared from now on.
  // `coded`: the newest rows see its codes. No form: the page is not held.
  void share(int32_t head, const PageForms& page, bool coded);
  // Appends a page that is not held.
  void skip(int32_t head);
  // Frees page i in all its forms; the others keep their places.
  void drop(int32_t head, int32_t i);

  // ---- two forms --------------------------------------------------------------------------------------------------
  // Makes room for the codes of a page of values, which are not seen yet. Returns the page; throws Error(kOutOfPages).
  int32_t add_codes(int32_t head, int32_t i);
  // The newest rows see the codes from now on; the page of values stays until drop_born.
  void show_codes(int32_t head, int32_t i);
  void drop_born(int32_t head, int32_t i);
  // Undoes show_codes where the page of values is still there: false if it is not.
  bool show_born(int32_t head, int32_t i);
  // Frees codes that are not seen.
  void drop_codes(int32_t head, int32_t i);

  // Makes a row at most n pages long and frees the other pages, including pages allocated ahead.
  void shorten(int32_t head, int32_t n);
  void clear();

  // Copy on write, in steps so that running out of pages changes nothing:
  // 1. mark_copies marks the links that need a fresh page, by their `coded`, and returns their number;
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
  const uint8_t* old_codecs() const { return two_forms() ? old_codecs_.data() : nullptr; }
  void release_old();
  // The pool of a link's fresh page.
  PagePool& pool_of(const PageLink& link) const { return link.coded ? *pools_.codes : *pools_.values; }

 private:
  size_t at(int32_t head, int32_t i) const { return static_cast<size_t>(int64_t{head} * stride_ + i); }
  bool two_forms() const { return pools_.codes != nullptr; }
  void for_each_form(FunctionRef<void(PagePool& pool, int32_t page)> visit) const;
  void set_entry(size_t entry, const PageForms& page, bool coded);
  void count(const PageForms& page, int64_t by);
  int32_t run_ahead(int32_t head, int32_t end) const;

  TablePools pools_;
  int32_t stride_ = 0;
  std::vector<int32_t> pages_;          // [n_heads, stride], the first n_pages of a row are in use; -1: not held
  std::vector<uint8_t> codecs_;         // the same of their codecs; empty with one form, like the next two
  std::vector<int32_t> born_;           // values of pages whose codes are seen; -1: freed
  std::vector<int32_t> ahead_;          // codes of pages whose values are seen; -1: not made
  int64_t n_coded_ = 0;                 // pages whose codes are seen
  int64_t n_values_ = 0, n_codes_ = 0;  // pages in use, by form
  std::vector<int32_t> n_pages_;        // [n_heads]
  // [n_heads] pages taken ahead, so that a head's pages lie together; never written
  std::vector<PageRun> spare_, spare_codes_;
  std::vector<int32_t> old_row_;     // [stride] during a relinking
  std::vector<uint8_t> old_codecs_;  // the same
  // Pages removed from the row.
  struct Left {
    PagePool* pool;
    int32_t page;
  };
  std::vector<Left> left_;
};

}  // namespace vlcache
