#include "cache/page_table.h"

#include <algorithm>
#include <numeric>
#include <type_traits>
#include <utility>

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

PageTable::PageTable(const TablePools& pools, int32_t n_heads)
    : pools_(pools), n_pages_(static_cast<size_t>(n_heads), 0), spare_(static_cast<size_t>(n_heads)) {
  if (two_forms()) spare_codes_.resize(static_cast<size_t>(n_heads));
  set_stride(1);
}

PageTable PageTable::fork() const {
  PageTable copy(pools_, static_cast<int32_t>(n_pages_.size()));
  copy.set_stride(stride_);
  for (int32_t h = 0; h < static_cast<int32_t>(n_pages_.size()); ++h) {
    for (int32_t i = 0; i < n_pages(h); ++i) copy.share(h, forms(h, i), is_coded(h, i));
  }
  return copy;
}

void PageTable::set_stride(int32_t stride) {
  if (stride == stride_) return;
  CHECK(std::ranges::all_of(n_pages_, [&](int32_t n) { return n <= stride; }));
  const auto resized = [&](const auto& table) {
    using Table = std::remove_cvref_t<decltype(table)>;
    return stride_ > 0 ? with_stride(table, stride_, stride) : Table(n_pages_.size() * static_cast<size_t>(stride));
  };
  old_row_.resize(static_cast<size_t>(stride));
  left_.reserve(static_cast<size_t>(stride));
  auto pages = resized(pages_);
  if (two_forms()) {
    old_codecs_.resize(static_cast<size_t>(stride));
    auto codecs = resized(codecs_);
    auto born = resized(born_), ahead = resized(ahead_);
    codecs_ = std::move(codecs);
    born_ = std::move(born);
    ahead_ = std::move(ahead);
  }
  pages_ = std::move(pages);
  stride_ = stride;
}

int64_t PageTable::n_pages() const { return std::accumulate(n_pages_.begin(), n_pages_.end(), int64_t{0}); }

int64_t PageTable::table_bytes() const {
  const size_t ids = pages_.capacity() + born_.capacity() + ahead_.capacity();
  return static_cast<int64_t>(ids * sizeof(int32_t) + codecs_.capacity());
}

PageForms PageTable::forms(int32_t head, int32_t i) const {
  CHECK(i < n_pages(head));
  const size_t entry = at(head, i);
  if (!two_forms()) return {.born = pages_[entry]};
  if (is_coded(head, i)) return {.born = born_[entry], .coded = pages_[entry]};
  return {.born = pages_[entry], .coded = ahead_[entry]};
}

// Calls visit(pool, page) for each form of each page in use.
void PageTable::for_each_form(FunctionRef<void(PagePool& pool, int32_t page)> visit) const {
  for (int32_t h = 0; h < static_cast<int32_t>(n_pages_.size()); ++h) {
    for (int32_t i = 0; i < n_pages(h); ++i) {
      const PageForms page = forms(h, i);
      if (page.born >= 0) visit(*pools_.values, page.born);
      if (page.coded >= 0) visit(*pools_.codes, page.coded);
    }
  }
}

int64_t PageTable::bytes() const {
  if (!two_forms()) return n_pages_.empty() ? 0 : n_values_ * pools_.values->page_bytes();
  return n_values_ * pools_.values->page_bytes() + n_codes_ * pools_.codes->page_bytes();
}

int64_t PageTable::bytes(KvCodec codec) const {
  if (!two_forms()) return codec == pools_.value_codec ? bytes() : 0;
  if (codec == pools_.value_codec) return n_values_ * pools_.values->page_bytes();
  return codec == pools_.code_codec ? n_codes_ * pools_.codes->page_bytes() : 0;
}

int64_t PageTable::seen_coded_bytes() const { return n_coded_ > 0 ? n_coded_ * pools_.codes->page_bytes() : 0; }

bool PageTable::any_shared(int32_t head, int32_t begin, int32_t end) const {
  for (int32_t i = begin; i < end; ++i) {
    CHECK(is_held(head, i));
    const PagePool& pool = is_coded(head, i) ? *pools_.codes : *pools_.values;
    if (pool.references(row(head)[i]) > 1) return true;
  }
  return false;
}

bool PageTable::any_shared() const {
  bool shared = false;
  for_each_form([&](const PagePool& pool, int32_t page) { shared = shared || pool.references(page) > 1; });
  return shared;
}

void PageTable::for_each_page(FunctionRef<void(const PagePool& pool, int32_t page)> visit) const {
  for_each_form([&](const PagePool& pool, int32_t page) { visit(pool, page); });
  const auto visit_run = [&](const PagePool& pool, const PageRun& run) {
    for (int32_t page = run.begin; page < run.end; ++page) visit(pool, page);
  };
  for (const PageRun& run : spare_) visit_run(*pools_.values, run);
  for (const PageRun& run : spare_codes_) visit_run(*pools_.codes, run);
}

// How many pages to allocate at once: half as many as a row holds before page `end`, up to a run. A row that holds
// fewer than two runs because it frees pages before a window does not grow: an eighth.
int32_t PageTable::run_ahead(int32_t head, int32_t end) const {
  const int32_t most = std::min(end, 2 * kMaxRun);
  int32_t n_held = 0;
  while (n_held < most && is_held(head, end - 1 - n_held)) ++n_held;
  return n_held < most ? n_held / 8 : n_held / 2;
}

void PageTable::extend(int32_t head, int32_t n) {
  CHECK(n <= stride_);
  int32_t& have = n_pages_[static_cast<size_t>(head)];
  PageRun& spare = spare_[static_cast<size_t>(head)];
  while (have < n) {
    // Pages that will become codes are few at a time: none of their pages of values lie idle.
    const int32_t ahead = two_forms() ? 1 : run_ahead(head, have);
    if (spare.size() == 0) spare = pools_.values->allocate_run(std::max(n - have, ahead));
    set_entry(at(head, have++), {.born = spare.begin++}, /*coded=*/false);
    ++n_values_;
  }
}

void PageTable::share(int32_t head, const PageForms& page, bool coded) {
  int32_t& have = n_pages_[static_cast<size_t>(head)];
  CHECK(have < stride_ && spare_[static_cast<size_t>(head)].size() == 0);
  CHECK((coded ? page.coded : page.born) >= 0 || (page.born < 0 && page.coded < 0));
  CHECK(page.coded < 0 || two_forms());
  if (page.born >= 0) pools_.values->retain(page.born);
  if (page.coded >= 0) pools_.codes->retain(page.coded);
  set_entry(at(head, have++), page, coded);
  count(page, 1);
}

void PageTable::skip(int32_t head) {
  int32_t& have = n_pages_[static_cast<size_t>(head)];
  CHECK(have < stride_);
  set_entry(at(head, have++), {}, /*coded=*/false);
}

void PageTable::drop(int32_t head, int32_t i) {
  if (!is_held(head, i)) return;
  const PageForms page = forms(head, i);
  n_coded_ -= is_coded(head, i) ? 1 : 0;
  count(page, -1);
  set_entry(at(head, i), {}, /*coded=*/false);
  if (page.born >= 0) pools_.values->release(page.born);
  if (page.coded >= 0) pools_.codes->release(page.coded);
}

void PageTable::count(const PageForms& page, int64_t by) {
  n_values_ += page.born >= 0 ? by : 0;
  n_codes_ += page.coded >= 0 ? by : 0;
}

void PageTable::set_entry(size_t entry, const PageForms& page, bool coded) {
  pages_[entry] = coded ? page.coded : page.born;
  if (!two_forms()) return;
  codecs_[entry] = static_cast<uint8_t>(coded ? pools_.code_codec : pools_.value_codec);
  born_[entry] = coded ? page.born : -1;
  ahead_[entry] = coded ? -1 : page.coded;
  n_coded_ += coded ? 1 : 0;
}

void PageTable::shorten(int32_t head, int32_t n) {
  int32_t& have = n_pages_[static_cast<size_t>(head)];
  if (have <= n) return;
  PageRun& spare = spare_[static_cast<size_t>(head)];
  while (spare.size() > 0) pools_.values->release(spare.begin++);
  while (have > n) {
    const PageForms page = forms(head, have - 1);
    n_coded_ -= is_coded(head, have - 1) ? 1 : 0;
    --have;
    count(page, -1);
    if (page.born >= 0) pools_.values->release(page.born);
    if (page.coded >= 0) pools_.codes->release(page.coded);
  }
}

void PageTable::clear() {
  for (int32_t h = 0; h < static_cast<int32_t>(n_pages_.size()); ++h) {
    PageRun& spare = spare_[static_cast<size_t>(h)];
    while (spare.size() > 0) pools_.values->release(spare.begin++);
    shorten(h, 0);
  }
  for (PageRun& spare : spare_codes_) {
    while (spare.size() > 0) pools_.codes->release(spare.begin++);
  }
}

int32_t PageTable::add_codes(int32_t head, int32_t i) {
  const size_t entry = at(head, i);
  CHECK(two_forms() && i < n_pages(head) && !is_coded(head, i));
  if (ahead_[entry] >= 0) return ahead_[entry];
  PageRun& spare = spare_codes_[static_cast<size_t>(head)];
  if (spare.size() == 0) spare = pools_.codes->allocate_run(std::max(1, run_ahead(head, i)));
  ++n_codes_;
  return ahead_[entry] = spare.begin++;
}

void PageTable::show_codes(int32_t head, int32_t i) {
  const size_t entry = at(head, i);
  CHECK(!is_coded(head, i) && ahead_[entry] >= 0);
  set_entry(entry, {.born = pages_[entry], .coded = ahead_[entry]}, /*coded=*/true);
}

bool PageTable::show_born(int32_t head, int32_t i) {
  const size_t entry = at(head, i);
  if (!is_coded(head, i)) return true;
  if (born_[entry] < 0) return false;
  --n_coded_;
  set_entry(entry, {.born = born_[entry], .coded = pages_[entry]}, /*coded=*/false);
  return true;
}

void PageTable::drop_born(int32_t head, int32_t i) {
  const size_t entry = at(head, i);
  if (!is_coded(head, i) || born_[entry] < 0) return;
  pools_.values->release(std::exchange(born_[entry], -1));
  --n_values_;
}

void PageTable::drop_codes(int32_t head, int32_t i) {
  const size_t entry = at(head, i);
  if (!two_forms() || is_coded(head, i) || ahead_[entry] < 0) return;
  pools_.codes->release(std::exchange(ahead_[entry], -1));
  --n_codes_;
}

int32_t PageTable::mark_copies(int32_t head, std::span<PageLink> links) const {
  int32_t n = 0;
  for (PageLink& link : links) {
    CHECK(0 <= link.source && is_held(head, link.source) && (two_forms() || !link.coded));
    const bool other_form = link.coded != is_coded(head, link.source);
    const PagePool& pool = is_coded(head, link.source) ? *pools_.codes : *pools_.values;
    CHECK(!other_form || (link.write && link.coded));
    link.copy = other_form || (link.write && pool.references(row(head)[link.source]) > 1);
    n += link.copy ? 1 : 0;
  }
  return n;
}

void PageTable::relink(int32_t head, const NewRow& to, FreshPages& fresh) {
  int32_t& n = n_pages_[static_cast<size_t>(head)];
  for (int32_t i = to.first; i < n; ++i) drop_born(head, i), drop_codes(head, i);
  const int64_t first = static_cast<int64_t>(at(head, 0));
  std::copy_n(pages_.begin() + first, n, old_row_.begin());
  if (two_forms()) std::copy_n(codecs_.begin() + first, n, old_codecs_.begin());
  for (int32_t i = to.first; i < n; ++i) {
    count(forms(head, i), -1);
    n_coded_ -= is_coded(head, i) ? 1 : 0;
  }
  left_.clear();
  const auto was_coded = [&](int32_t i) {
    return two_forms() && old_codecs_[static_cast<size_t>(i)] == static_cast<uint8_t>(pools_.code_codec);
  };
  const auto leave = [&](int32_t i) {
    if (old_row_[static_cast<size_t>(i)] < 0) return;
    left_.push_back({was_coded(i) ? pools_.codes : pools_.values, old_row_[static_cast<size_t>(i)]});
  };
  int32_t next = to.first, unnamed = to.first;
  const auto leave_until = [&](int32_t end) {
    for (; unnamed < end; ++unnamed) leave(unnamed);
  };
  const auto put = [&](int32_t page, bool coded) {
    const PageForms one = coded ? PageForms{.coded = page} : PageForms{.born = page};
    set_entry(at(head, next++), one, coded);
    count(one, 1);
  };
  for (const PageLink& link : to.links) {  // sources ascend
    leave_until(link.source);
    put(link.copy ? fresh.next() : old_row_[static_cast<size_t>(link.source)], link.coded);
    unnamed = link.source + 1;
  }
  leave_until(n);
  if (to.keep_rest) {
    CHECK(!two_forms());
    for (const Left& left : left_) put(left.page, false);
    left_.clear();
  }
  for (const PageLink& link : to.links) {
    if (link.copy) leave(link.source);
  }
  n = next;
}

void PageTable::release_old() {
  for (const Left& left : left_) left.pool->release(left.page);
  left_.clear();
}

}  // namespace vlcache
