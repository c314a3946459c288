// Page groups, elements of images, and eviction.
#include "reuse/prefix/prefix_cache.h"

#include <algorithm>
#include <set>

#include "base/error.h"

namespace vlcache {
namespace {

// An element of an image: negative, with the number of its content above the row's bits.
constexpr int kRowBits = 24;
constexpr int64_t kTrimShare = 16;     // of the budget: after this much eviction memory goes back to the system
constexpr size_t kFewContents = 1024;  // this many cost nothing to remember

}  // namespace

BudgetedPrefixes::BudgetedPrefixes(CacheBudget& budget, PageGroupOwner& owner, int32_t page_size, int64_t page_bytes)
    : budget_(budget),
      owner_(owner),
      page_size_(page_size),
      page_bytes_(page_bytes),
      clock_(budget, page_bytes),
      tree_(page_size, owner, clock_) {}

bool BudgetedPrefixes::keep(std::span<const Element> key, double cost, FunctionRef<PageGroup(int32_t)> make,
                            FunctionRef<int64_t(int32_t)> bytes) {
  const auto n_pages = static_cast<int32_t>((std::ssize(key) + page_size_ - 1) / page_size_);
  int32_t end = 0;
  int64_t total = 0;
  std::vector<int64_t> bytes_before;  // [end]
  for (; end < n_pages; ++end) {
    const int64_t own = bytes(end);
    if (total + own > budget_.max_bytes()) break;
    bytes_before.push_back(total);
    total += own;
  }
  key = key.first(std::min(key.size(), static_cast<size_t>(end) * static_cast<size_t>(page_size_)));
  const int64_t n_known = tree_.n_common(key);
  if (n_known == std::ssize(key)) return false;
  const auto begin = static_cast<int32_t>(n_known / page_size_);
  const PrefixTree::Pin pin = tree_.pin(key.first(static_cast<size_t>(begin) * page_size_));  // the preceding pages
  const int64_t more = total - bytes_before[static_cast<size_t>(begin)];
  if (!budget_.make_room(more)) return false;
  std::vector<PageGroup> groups(static_cast<size_t>(end), -1);
  for (int32_t i = begin; i < end; ++i) groups[static_cast<size_t>(i)] = make(i);
  // The clock divides by page_bytes_: pages that take fewer bytes are worth as much more.
  const double mean_bytes = std::max(1.0, static_cast<double>(more) / (end - begin));
  tree_.insert(key, groups, cost * page_size_ * static_cast<double>(page_bytes_) / mean_bytes, /*asks=*/false);
  for (int32_t i = begin; i < end; ++i) owner_.release(groups[static_cast<size_t>(i)]);  // the tree holds them
  return true;
}

PrefixCache::Groups::Groups(PagePools& pools, const KvShape& shape)
    : has_codes_(shape.has_codes()), window_(shape.largest_window()) {
  for (int32_t layer = 0; layer < shape.n_layers(); ++layer) {
    const TablePools of = pools.of(shape, layer);
    FormBytes& bytes = shape.is_windowed(layer) ? windowed_ : all_;
    for (int32_t head = 0; head < shape.n_own_heads(layer); ++head) {
      pools_.push_back(of);
      is_windowed_.push_back(shape.is_windowed(layer));
      (of.codes == nullptr ? bytes.fixed : bytes.values) += of.values->page_bytes();
      if (of.codes != nullptr) bytes.codes += of.codes->page_bytes();
    }
  }
  listed_.resize(pools_.size());
}

// Lists the i-th page of every head, in the forms that all of them have: codes are made ahead of the rows that need
// them, one head's after the other's.
CachedForms PrefixCache::Groups::list(const KvCache& cache, int32_t i) {
  cache.list_pages(i, listed_);
  CachedForms forms{.values = true, .codes = has_codes_, .window_values = true, .window_codes = has_codes_};
  const auto of = [&](size_t column) {
    return is_windowed_[column] ? std::pair<bool&, bool&>(forms.window_values, forms.window_codes)
                                : std::pair<bool&, bool&>(forms.values, forms.codes);
  };
  for (size_t c = 0; c < pools_.size() && !all_alike(); ++c) {
    auto [values, codes] = of(c);
    values = values && listed_[c].born >= 0;
    codes = codes && (pools_[c].codes == nullptr ? listed_[c].born : listed_[c].coded) >= 0;
  }
  for (size_t c = 0; c < pools_.size(); ++c) {
    auto [values, codes] = of(c);
    if (!values && (pools_[c].codes != nullptr || !codes)) listed_[c].born = -1;
    if (!codes) listed_[c].coded = -1;
  }
  CHECK(forms.values || forms.codes);
  return forms;
}

int64_t PrefixCache::Groups::bytes_of(const CachedForms& forms) const {
  return all_.of(forms.values, forms.codes) + windowed_.of(forms.window_values, forms.window_codes);
}

int64_t PrefixCache::Groups::bytes_of(const KvCache& cache, int32_t i) {
  return all_alike() ? value_bytes() : bytes_of(list(cache, i));
}

PageGroup PrefixCache::Groups::make(const KvCache& cache, int32_t i) {
  if (free_.empty()) {
    free_.push_back(static_cast<int32_t>(references_.size()));
    references_.push_back(0);
    forms_.emplace_back();
    pages_.resize(pages_.size() + pools_.size());
  }
  const PageGroup group = free_.back();
  free_.pop_back();
  references_[static_cast<size_t>(group)] = 1;
  forms_[static_cast<size_t>(group)] = list(cache, i);
  bytes_ += bytes_of(forms(group));
  std::ranges::copy(listed_, pages_.begin() + static_cast<int64_t>(group) * std::ssize(pools_));
  for_each_form(group, [](PagePool& pool, int32_t page) { pool.retain(page); });
  return group;
}

namespace {

CachedForms either(const CachedForms& a, const CachedForms& b) {
  return {.values = a.values || b.values,
          .codes = a.codes || b.codes,
          .window_values = a.window_values || b.window_values,
          .window_codes = a.window_codes || b.window_codes};
}

}  // namespace

int64_t PrefixCache::Groups::missing_bytes(PageGroup group, const KvCache& cache, int32_t i) {
  const CachedForms has = forms(group), comes = list(cache, i);
  return bytes_of(either(has, comes)) - bytes_of(has);
}

void PrefixCache::Groups::add_missing(PageGroup group, const KvCache& cache, int32_t i) {
  CachedForms& has = forms_[static_cast<size_t>(group)];
  const CachedForms comes = list(cache, i);
  PageForms* const pages = pages_.data() + static_cast<size_t>(group) * pools_.size();
  bytes_ -= bytes_of(has);
  for (size_t c = 0; c < pools_.size(); ++c) {
    if (pages[c].born < 0 && listed_[c].born >= 0) {
      pages[c].born = listed_[c].born;
      pools_[c].values->retain(pages[c].born);
    }
    if (pages[c].coded < 0 && listed_[c].coded >= 0) {
      pages[c].coded = listed_[c].coded;
      pools_[c].codes->retain(pages[c].coded);
    }
  }
  has = either(has, comes);
  bytes_ += bytes_of(has);
}

std::span<const PageForms> PrefixCache::Groups::pages(PageGroup group) const {
  return {pages_.data() + static_cast<size_t>(group) * pools_.size(), pools_.size()};
}

void PrefixCache::Groups::for_each_form(PageGroup group, FunctionRef<void(PagePool& pool, int32_t page)> visit) const {
  const std::span<const PageForms> held = pages(group);
  for (size_t c = 0; c < held.size(); ++c) {
    if (held[c].born >= 0) visit(*pools_[c].values, held[c].born);
    if (held[c].coded >= 0) visit(*pools_[c].codes, held[c].coded);
  }
}

void PrefixCache::Groups::release(PageGroup group) {
  if (--references_[static_cast<size_t>(group)] > 0) return;
  for_each_form(group, [](PagePool& pool, int32_t page) { pool.release(page); });
  bytes_ -= bytes_of(forms(group));
  free_.push_back(group);
}

void PrefixCache::Groups::for_each_page(FunctionRef<void(const PagePool& pool, int32_t page)> visit) const {
  for (size_t group = 0; group < references_.size(); ++group) {
    if (references_[group] > 0) for_each_form(static_cast<PageGroup>(group), visit);
  }
}

PrefixCache::PrefixCache(CacheBudget& budget, PagePools& pools, const KvShape& shape)
    : budget_(budget),
      pools_(pools),
      groups_(pools, shape),
      prefixes_(budget, groups_, kPageSlots, groups_.value_bytes()),
      n_contents_to_sweep_(kFewContents) {
  budget_.join(*this);
  pools_.add_reserve(*this);
}

PrefixCache::~PrefixCache() {
  pools_.remove_reserve(*this);
  budget_.leave(*this);
}

Element PrefixCache::image_row(const Sha256Digest& content, int32_t row) {
  CHECK(0 <= row && row < (1 << kRowBits));
  const auto [at, is_new] = contents_.try_emplace(content, next_content_);
  if (is_new) {
    ++next_content_;
    if (contents_.size() > n_contents_to_sweep_) forget_contents();
    return image_row(content, row);
  }
  return -1 - (at->second << kRowBits | row);
}

// Drops contents that no key in the tree has: they cannot be found again, and get a new number when they recur. The
// newest stays, because the caller is about to use it.
void PrefixCache::forget_contents() {
  std::set<int64_t> used{next_content_ - 1};
  prefixes_.tree().for_each_element([&](Element e) {
    if (e < 0) used.insert((-1 - e) >> kRowBits);
  });
  std::erase_if(contents_, [&](const auto& content) { return !used.contains(content.second); });
  n_contents_to_sweep_ = std::max(kFewContents, 2 * contents_.size());
}

PrefixCache::Known PrefixCache::known(std::span<const Element> key) {
  if (groups_.all_alike()) {
    const auto n = static_cast<int32_t>(prefixes_.tree().n_common(key));
    return {n, n};
  }
  const PrefixTree::Match match = prefixes_.tree().peek(key);
  const auto forms = [&](int32_t page) { return groups_.forms(match.groups[static_cast<size_t>(page)]); };
  return {.n = continuation_place(static_cast<int32_t>(match.n_elements), groups_.window(), forms).n,
          .n_common = static_cast<int32_t>(match.n_common)};
}

PrefixTree::Pin PrefixCache::share(std::span<const Element> key, KvCache& cache) {
  const CheckScope shared(CheckScope::Failure::kAbort);
  CHECK(known(key).n == std::ssize(key));
  std::vector<std::span<const PageForms>> pages;
  for (const PageGroup group : prefixes_.tree().match(key).groups) pages.push_back(groups_.pages(group));
  cache.share(pages, static_cast<int32_t>(key.size()));
  return prefixes_.tree().pin(key);
}

int32_t PrefixCache::n_fitting(const KvCache& cache, int32_t n_total) const {
  int64_t bytes = 0;
  const int32_t n_pages = n_total / kPageSlots;
  for (int32_t i = 0; i < n_pages; ++i) {
    bytes += groups_.bytes_of(cache.forms_to_come(i, n_total));
    if (bytes > budget_.max_bytes()) return i;
  }
  return n_pages;
}

PrefixCache::Pages PrefixCache::pages(std::span<const Element> key) {
  Pages pages{.groups = prefixes_.tree().peek(key).groups, .pin = {}};
  pages.pin = prefixes_.tree().pin(key);
  return pages;
}

void PrefixCache::keep(std::span<const Element> key, const KvCache& cache, double ms_per_token) {
  const CheckScope shared(CheckScope::Failure::kAbort);
  CHECK(cache.complete(static_cast<int32_t>(key.size())));
  const bool more_forms = !groups_.all_alike() && add_missing_forms(key, cache);
  const bool more_pages = prefixes_.keep(
      key, ms_per_token, [&](int32_t page) { return groups_.make(cache, page); },
      [&](int32_t page) { return groups_.bytes_of(cache, page); });
  if (more_forms || more_pages) ++version_;
}

// Of full pages that are cached already.
bool PrefixCache::add_missing_forms(std::span<const Element> key, const KvCache& cache) {
  const PrefixTree::Match match = prefixes_.tree().peek(key);
  const PrefixTree::Pin pin = prefixes_.tree().pin(key);
  const auto for_each_full = [&](auto visit) {
    for (int32_t i = 0; i < match.n_elements / kPageSlots; ++i) visit(match.groups[static_cast<size_t>(i)], i);
  };
  int64_t bytes = 0;
  for_each_full([&](PageGroup group, int32_t i) { bytes += groups_.missing_bytes(group, cache, i); });
  if (bytes == 0 || !budget_.make_room(bytes)) return false;
  for_each_full([&](PageGroup group, int32_t i) { groups_.add_missing(group, cache, i); });
  return true;
}

int64_t PrefixCache::evict(int64_t n_groups) {
  const CheckScope shared(CheckScope::Failure::kAbort);
  const int64_t before = bytes(), n = prefixes_.tree().evict(n_groups);
  n_evictions_ += n;
  if (n > 0) ++version_;
  untrimmed_bytes_ += before - bytes();
  // Pages in use between the holes keep new sequences from filling them, since these start where adjacent pages are
  // free, and the pool's memory would grow to its limit.
  if (untrimmed_bytes_ > budget_.max_bytes() / kTrimShare) {
    untrimmed_bytes_ = 0;
    pools_.trim();
  }
  return n;
}

void PrefixCache::on_evict(PrefixTree::EvictionListener listener) {
  listener_ = listener;
  prefixes_.tree().on_evict(std::move(listener));
}

void PrefixCache::clear() {
  prefixes_.tree().on_evict(nullptr);
  evict(prefixes_.tree().n_pages());
  prefixes_.tree().on_evict(listener_);
}

CacheHold PrefixCache::hold(std::span<const Element> key) {
  const CheckScope shared(CheckScope::Failure::kAbort);
  holds_.emplace(++next_hold_, prefixes_.tree().pin(key));
  return CacheHold([this, hold = next_hold_] { holds_.erase(hold); });
}

bool PrefixCache::give_up_hold() {
  if (holds_.empty()) return false;
  holds_.erase(std::prev(holds_.end()));
  return true;
}

bool PrefixCache::free_pages() {
  const CheckScope shared(CheckScope::Failure::kAbort);
  const int64_t used = pools_.used_bytes();
  while (evict(1) > 0 || give_up_hold()) {
    if (pools_.used_bytes() < used) return true;  // otherwise running sequences hold these pages, too
  }
  return false;
}

}  // namespace vlcache
