// Hiding, sweeping, noting and rolling back allocate nothing on the heap, nor does appending where room was reserved.
#include <gtest/gtest.h>

#include "base/os/allocations_testing.h"

#ifndef VLCACHE_REF_ONLY

#include "cache/kv_cache_testing.h"

namespace vlcache {
namespace {

class SweepAllocations : public KvCacheFixture {
 protected:
  SweepAllocations() : KvCacheFixture("cpu", KvCodec::kBF16) {}
};

// As decoding does under a sliding window: a token is appended, a token hidden; a step fails now and then.
TEST_F(SweepAllocations, SweepingDoesNotAllocate) {
  KvCache cache = make();
  cache.set_planes(1);
  cache.reserve(2000);
  fill(cache, 0, 1000);
  KvCache copy = cache.fork();  // pages are shared at first
  const int before = g_allocations;
  int64_t n_pages = 0;
  for (int32_t t = 1000; t < 1300; ++t) {
    for (const bool fails : {true, false}) {
      cache.begin_step();
      for (int32_t l = 0; l < kLayers; ++l) cache.append(l, {&t, 1});
      if (fails) cache.rollback_step();
    }
    for (int32_t l = 0; l < kLayers; ++l) {
      for (int32_t h = 0; h < kHeads; ++h) cache.hide(l, h, 4 + cache.n_hidden(l, h));
    }
    cache.sweep();
    n_pages = std::max(n_pages, cache.n_pages());
  }
  EXPECT_EQ(g_allocations - before, 0);
  EXPECT_LE(n_pages, 17 * kLayers * kHeads);
  EXPECT_EQ(cache.n_slots(1, 1), 1300 - 4 * kPageSlots);
  EXPECT_EQ(cache.slot_tokens(1, 1)[4], 4 + 4 * kPageSlots);
  EXPECT_EQ(copy.n_slots(1, 1), 1000);
}

}  // namespace
}  // namespace vlcache

#endif
