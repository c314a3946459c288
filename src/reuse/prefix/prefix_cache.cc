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

int64_t bytes_of_group(PagePools& pools, const KvShape& shape) {
  int64_t bytes = 0;
  for (int32_t layer = 0; layer < shape.n_layers(); ++layer) {
    const int32_t n_heads = shape.n_own_heads(layer);
    if (n_heads > 0) bytes += n_heads * pools.of(shape, layer).values->page_bytes();
  }
  return bytes;
}

}  // namespace

BudgetedPrefixes::BudgetedPrefixes(CacheBudget& budget, PageGroupOwner& owner, int32_t page_size, int64_t page_bytes)
    : budget_(budget),
      owner_(owner),
      page_size_(page_size),
      page_bytes_(page_bytes),
      clock_(budget, page_bytes),
      tree_(page_size, owner, clock_) {}

bool BudgetedPrefixes::keep(std::span<const Element> key, double cost, FunctionRef<PageGroup(int32_t)> make) {
  const int64_t most = max_pages() * page_size_;
  if (std::ssize(key) > most) key = key.first(static_cast<size_t>(most));
  const int64_t n_known = tree_.n_common(key);
  if (n_known == std::ssize(key)) return false;
  const auto begin = static_cast<int32_t>(n_known / page_size_);
  const auto end = static_cast<int32_t>((std::ssize(key) + page_size_ - 1) / page_size_);
  const PrefixTree::Pin pin = tree_.pin(key.first(static_cast<size_t>(begin) * page_size_));  // the preceding pages
  if (!budget_.make_room((end - begin) * page_bytes_)) return false;
  std::vector<PageGroup> groups(static_cast<size_t>(end), -1);
  for (int32_t i = begin; i < end; ++i) groups[static_cast<size_t>(i)] = make(i);
  tree_.insert(key, groups, cost * page_size_, /*asks=*/false);
  for (int32_t i = begin; i < end; ++i) owner_.release(groups[static_cast<size_t>(i)]);  // the tree holds them
  return true;
}

PrefixCache::Groups::Groups(PagePools& pools, const KvShape& shape) {
  for (int32_t layer = 0; layer < shape.n_layers(); ++layer) {
    for (int32_t head = 0; head < shape.n_own_heads(layer); ++head) pools_.push_back(pools.of(shape, layer));
  }
}

PageGroup PrefixCache::Groups::make(const KvCache& cache, int32_t i) {
  if (free_.empty()) {
    free_.push_back(static_cast<int32_t>(references_.size()));
    references_.push_back(0);
    pages_.resize(pages_.size() + pools_.size());
  }
  const PageGroup group = free_.back();
  free_.pop_back();
  references_[static_cast<size_t>(group)] = 1;
  PageForms* pages = pages_.data() + static_cast<size_t>(group) * pools_.size();
  cache.list_pages(i, {pages, pools_.size()});
  for (size_t c = 0; c < pools_.size(); ++c) pools_[c].values->retain(pages[c].born);
  return group;
}

std::span<const PageForms> PrefixCache::Groups::pages(PageGroup group) const {
  return {pages_.data() + static_cast<size_t>(group) * pools_.size(), pools_.size()};
}

std::span<const std::byte> PrefixCache::Groups::page(PageGroup group, int32_t column) const {
  const auto c = static_cast<size_t>(column);
  const KvPool pool = pools_[c].values->view();
  return {pool.base + pages(group)[c].born * pool.page_bytes, static_cast<size_t>(pool.page_bytes)};
}

void PrefixCache::Groups::release(PageGroup group) {
  if (--references_[static_cast<size_t>(group)] > 0) return;
  const std::span<const PageForms> held = pages(group);
  for (size_t c = 0; c < held.size(); ++c) pools_[c].values->release(held[c].born);
  free_.push_back(group);
}

void PrefixCache::Groups::for_each_page(FunctionRef<void(const PagePool& pool, int32_t page)> visit) const {
  for (size_t group = 0; group < references_.size(); ++group) {
    if (references_[group] == 0) continue;
    const std::span<const PageForms> held = pages(static_cast<PageGroup>(group));
    for (size_t c = 0; c < held.size(); ++c) visit(*pools_[c].values, held[c].born);
  }
}

PrefixCache::PrefixCache(CacheBudget& budget, PagePools& pools, const KvShape& shape)
    : budget_(budget),
      pools_(pools),
      group_bytes_(bytes_of_group(pools, shape)),
      groups_(pools, shape),
      prefixes_(budget, groups_, kPageSlots, group_bytes_),
      n_contents_to_sweep_(kFewContents) {
  budget_.join(*this);
  pools_.set_reserve(this);
}

PrefixCache::~PrefixCache() {
  pools_.set_reserve(nullptr);
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

PrefixTree::Pin PrefixCache::share(std::span<const Element> key, KvCache& cache) {
  const CheckScope shared(CheckScope::Failure::kAbort);
  const PrefixTree::Match match = prefixes_.tree().match(key);
  CHECK(match.n_elements == std::ssize(key));
  std::vector<std::span<const PageForms>> pages;
  for (const PageGroup group : match.groups) pages.push_back(groups_.pages(group));
  cache.share(pages, static_cast<int32_t>(key.size()));
  return prefixes_.tree().pin(key);
}

void PrefixCache::keep(std::span<const Element> key, const KvCache& cache, double ms_per_token) {
  const CheckScope shared(CheckScope::Failure::kAbort);
  CHECK(cache.complete(static_cast<int32_t>(key.size())));
  if (prefixes_.keep(key, ms_per_token, [&](int32_t page) { return groups_.make(cache, page); })) ++version_;
}

int64_t PrefixCache::evict(int64_t n_groups) {
  const CheckScope shared(CheckScope::Failure::kAbort);
  const int64_t n = prefixes_.tree().evict(n_groups);
  n_evictions_ += n;
  if (n > 0) ++version_;
  untrimmed_bytes_ += n * group_bytes_;
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
