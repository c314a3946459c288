// Accounts checks, in tests, that no memory is lost: every page is free, or held by sequences and caches that report
// it, by each as often as it is counted; caches keep to their budget, queues to theirs.
#pragma once

#include <map>

#include "engine/engine_caches.h"
#include "engine/engine_testing.h"
#include "engine/scheduler/scheduler.h"
#include "reuse/prefix/prefix_cache.h"

namespace vlcache {

class Accounts {
 public:
  explicit Accounts(Engine& engine) : engine_(engine) { total_ = pool().n_free() + pool().n_used(); }

  // Between two steps.
  void check(const Scheduler& scheduler) {
    std::map<int32_t, int32_t> live, cached;  // times held, by page
    scheduler.for_each_sequence([&](const Sequence& sequence) {
      sequence.cache().for_each_page([&](const PagePool&, int32_t page) { ++live[page]; });
    });
    engine_.caches().usual().prefixes().for_each_page([&](const PagePool&, int32_t page) { ++cached[page]; });
    std::map<int32_t, int32_t> held = live;
    int64_t n_shared = 0;  // pinned: a running sequence begins with it
    for (const auto& [page, n] : cached) {
      n_shared += live.contains(page) ? 1 : 0;
      held[page] += n;
    }
    for (const auto& [page, n] : held) EXPECT_EQ(pool().references(page), n) << "page " << page;
    const auto n_live = std::ssize(live), n_cached = std::ssize(cached);
    EXPECT_EQ(pool().n_free() + n_live + n_cached - n_shared, total_);
    EXPECT_EQ(pool().n_used(), n_live + n_cached - n_shared);
    EXPECT_EQ(engine_.pools().used_bytes(), pool().n_used() * pool().page_bytes());
    EXPECT_LE(engine_.pools().used_bytes(), engine_.pools().max_bytes());
    EXPECT_EQ(n_cached * pool().page_bytes(), engine_.caches().usual().prefixes().bytes());
    const CacheTotals totals = engine_.kv().totals();
    const int64_t in_flight =
        engine_.caches().usual().image_prefetch() != nullptr ? engine_.caches().usual().image_prefetch()->bytes() : 0;
    EXPECT_EQ(engine_.caches().cache_budget().used_bytes(),
              totals.prefix.bytes + totals.image_kv.bytes + totals.encoder.bytes + in_flight);
    EXPECT_LE(engine_.caches().cache_budget().used_bytes(), engine_.caches().cache_budget().max_bytes());
    n_seen_shared += n_shared;
    n_seen_cached += n_cached;
  }
  // After all requests have ended.
  void check_end(const Scheduler& scheduler) {
    check(scheduler);
    engine_.caches().usual().prefixes().clear();
    EXPECT_EQ(engine_.pools().used_bytes(), 0);
    EXPECT_EQ(pool().n_free(), total_);
  }

  int64_t n_seen_shared = 0, n_seen_cached = 0;  // summed over all checks: that there was something to count

 private:
  // Models here have one head size, so one pool.
  PagePool& pool() { return engine_.pools().of(engine_.kv_shape().layers[0].head_dim, engine_.kv_shape().codec); }

  Engine& engine_;
  int64_t total_;
};

}  // namespace vlcache
