// PrefixCache: the KV of prompts and answers from their beginning on, in the pages where it was computed. Prompts with
// a common prefix share these pages (RadixAttention, arXiv:2312.07104).
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "base/sha256.h"
#include "cache/continuation.h"
#include "cache/kv_cache.h"
#include "cache/page_pools.h"
#include "reuse/cache_budget.h"
#include "reuse/prefix/prefix_tree.h"

namespace vlcache {

// A prefix tree whose pages are paid from a budget: which entries it evicts, and what it stores, whatever its pages
// stand for.
class BudgetedPrefixes {
 public:
  // page_bytes: of the page_size elements of a page, at most. Budget and owner must outlive it.
  BudgetedPrefixes(CacheBudget& budget, PageGroupOwner& owner, int32_t page_size, int64_t page_bytes);

  PrefixTree& tree() { return tree_; }
  const PrefixTree& tree() const { return tree_; }
  // Stores as much of `key` as the budget has room for. make(i): the i-th page, with a reference that is handed over.
  // bytes(i): of that page. `cost`: of recomputing an element. False: nothing new was stored.
  bool keep(std::span<const Element> key, double cost, FunctionRef<PageGroup(int32_t)> make,
            FunctionRef<int64_t(int32_t)> bytes);
  bool keep(std::span<const Element> key, double cost, FunctionRef<PageGroup(int32_t)> make) {
    return keep(key, cost, make, [this](int32_t) { return page_bytes_; });
  }

 private:
  // Priorities as in the cache budget's other caches, except that being stored does not count as a use: most prompts
  // arrive once, and would evict images, which fit into any prompt. With a tenth of a use, prefixes that are no longer
  // requested age, too.
  class Clock final : public EvictionClock {
   public:
    Clock(CacheBudget& budget, int64_t page_bytes) : budget_(budget), page_bytes_(page_bytes) {}
    double priority(double n_uses, double cost) override { return budget_.priority(n_uses - 0.9, cost, page_bytes_); }
    void went(double priority) override { budget_.went(priority); }

   private:
    CacheBudget& budget_;
    int64_t page_bytes_;
  };

  CacheBudget& budget_;
  PageGroupOwner& owner_;
  int32_t page_size_;
  int64_t page_bytes_;
  Clock clock_;
  PrefixTree tree_;
};

// Its pages lie in the pools of the running sequences, and are evicted when these find no other free page. Where full
// pages become codes, a page may be there as values, as codes, or both (PageForms); of layers with a window, it may be
// missing.
class PrefixCache final : public CacheBudget::Member, public PageReserve {
 public:
  // Budget and pools must outlive it; the pools ask it to free pages while it lives.
  PrefixCache(CacheBudget& budget, PagePools& pools, const KvShape& shape);
  ~PrefixCache() override;

  // The elements of keys: token ids as they are, and rows of the content that identifies an image's KV. Different
  // contents have different elements, also after eviction and recurrence.
  Element image_row(const Sha256Digest& content, int32_t row);

  // The cached part of a key.
  struct Known {
    int32_t n = 0;         // leading elements, after which a sequence can continue
    int32_t n_common = 0;  // leading elements in all; more only where KvShape::has_places()
  };
  // Does not count as a use.
  Known known(std::span<const Element> key);
  int32_t n_known(std::span<const Element> key) { return known(key).n; }
  // Gives `cache`, which is empty, the KV of all of `key`, after which a sequence must be able to continue. It is not
  // evicted while the pin lives.
  PrefixTree::Pin share(std::span<const Element> key, KvCache& cache);
  // Keeps the pages of a cache that is complete and holds `key` from its beginning on, as far as the budget has room:
  // of pages that are cached already the forms that are missing. A partly filled last page is kept as it is: it must
  // not be written to any more. `ms_per_token`: time to recompute it.
  void keep(std::span<const Element> key, const KvCache& cache, double ms_per_token);
  void clear();
  // The cached part of `key` is not evicted for the budget; running sequences still get its pages if they need them,
  // those of the latest holds first.
  CacheHold hold(std::span<const Element> key);
  // Version counter; changes with the contents.
  int64_t version() const { return version_; }

  // Called before pages are evicted, not for clear(): PrefixTree::on_evict. The pages are still there.
  void on_evict(PrefixTree::EvictionListener listener);
  // The cached pages of a key, which are not evicted while the pin lives. Does not count as a use.
  struct Pages {
    std::vector<PageGroup> groups;
    PrefixTree::Pin pin;
  };
  Pages pages(std::span<const Element> key);
  // The pages of a group, by column as KvCache counts them: all heads of all layers.
  std::span<const PageForms> forms(PageGroup group) const { return groups_.pages(group); }

  CacheStats stats() const { return {.n_evictions = n_evictions_, .bytes = bytes()}; }
  // Visits the pages that it holds.
  void for_each_page(FunctionRef<void(const PagePool& pool, int32_t page)> visit) const {
    groups_.for_each_page(visit);
  }
  // Bytes of 64 tokens in all layers and heads, as values, none of them missing.
  int64_t group_bytes() const { return groups_.value_bytes(); }
  // Number of groups for which the budget has room, as values.
  // The leading whole pages of a prompt of n_total tokens, of which the cache has the first ones, that fit into the
  // budget.
  int32_t n_fitting(const KvCache& cache, int32_t n_total) const;

  // CacheBudget::Member.
  int64_t bytes() const override { return groups_.bytes(); }
  // PageReserve's, too.
  double least_priority() const override { return prefixes_.tree().least_priority(); }
  void evict_least() override { evict(1); }
  // PageReserve.
  bool free_pages() override;

 private:
  // The pages of 64 tokens over all layers and heads, counted as one. All heads of the windowed layers have the same
  // forms, and all heads of the other layers.
  class Groups final : public PageGroupOwner {
   public:
    Groups(PagePools& pools, const KvShape& shape);
    // Of the windowed layers; 0: there is none.
    int32_t window() const { return window_; }
    bool all_alike() const { return !has_codes_ && window_ == 0; }
    // Shares the i-th page of every head, in the forms that all of them have; the caller holds one reference.
    PageGroup make(const KvCache& cache, int32_t i);
    // Bytes that make() adds.
    int64_t bytes_of(const KvCache& cache, int32_t i);
    int64_t bytes_of(const CachedForms& forms) const;
    // Bytes of the forms that the cache's page has, and the group does not.
    int64_t missing_bytes(PageGroup group, const KvCache& cache, int32_t i);
    // Shares these forms.
    void add_missing(PageGroup group, const KvCache& cache, int32_t i);

    std::span<const PageForms> pages(PageGroup group) const;
    CachedForms forms(PageGroup group) const { return forms_[static_cast<size_t>(group)]; }
    void retain(PageGroup group) override { ++references_[static_cast<size_t>(group)]; }
    void release(PageGroup group) override;
    bool can_grow(PageGroup group) const override { return forms(group).values && forms(group).window_values; }
    void for_each_page(FunctionRef<void(const PagePool& pool, int32_t page)> visit) const;
    int64_t bytes() const { return bytes_; }
    // Of a group without codes, which has all pages.
    int64_t value_bytes() const { return all_.of(true, false) + windowed_.of(true, false); }

   private:
    CachedForms list(const KvCache& cache, int32_t i);
    void for_each_form(PageGroup group, FunctionRef<void(PagePool& pool, int32_t page)> visit) const;

    std::vector<TablePools> pools_;  // [n_columns], as KvCache counts them
    std::vector<bool> is_windowed_;  // [n_columns]
    bool has_codes_ = false;
    int32_t window_ = 0;
    // Bytes of a group: of the layers without codes, and of the others in each form.
    struct FormBytes {
      int64_t fixed = 0, values = 0, codes = 0;
      int64_t of(bool has_values, bool has_codes) const {
        return (has_values || has_codes ? fixed : 0) + (has_values ? values : 0) + (has_codes ? codes : 0);
      }
    };
    FormBytes all_, windowed_;        // layers that keep all pages, windowed layers
    std::vector<PageForms> pages_;    // [n_groups, n_columns]
    std::vector<CachedForms> forms_;  // [n_groups]
    std::vector<int32_t> references_, free_;
    std::vector<PageForms> listed_;  // [n_columns], of list()
    int64_t bytes_ = 0;
  };
  bool add_missing_forms(std::span<const Element> key, const KvCache& cache);
  int64_t evict(int64_t n_groups);
  bool give_up_hold();
  void forget_contents();

  CacheBudget& budget_;
  PagePools& pools_;
  Groups groups_;
  BudgetedPrefixes prefixes_;
  PrefixTree::EvictionListener listener_;
  std::map<int64_t, PrefixTree::Pin> holds_;  // in the order of requests
  int64_t next_hold_ = 0, version_ = 0;
  std::map<Sha256Digest, int64_t> contents_;  // numbers are never reused
  int64_t next_content_ = 0;
  size_t n_contents_to_sweep_;
  int64_t n_evictions_ = 0, untrimmed_bytes_ = 0;
};

}  // namespace vlcache
