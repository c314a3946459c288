#include "cache/kv_cache.h"

#include <cmath>

#include "cache/kv_cache_testing.h"

namespace vlcache {
namespace {

class KvCacheTest : public KvCacheFixture {};

TEST_F(KvCacheTest, GrowsPageByPageAndFreesEveryPage) {
  {
    KvCache cache = make();
    fill(cache, 0, 65);
    EXPECT_EQ(cache.n_pages(), kLayers * kHeads * 2);
    fill(cache, 65, 400);
    EXPECT_EQ(cache.n_pages(), kLayers * kHeads * 7);
    EXPECT_GE(pool_.n_used(), cache.n_pages());
    EXPECT_TRUE(cache.complete(400));
    EXPECT_FALSE(cache.complete(401));
    expect_tokens(cache, 1, 2, range(0, 400));
    EXPECT_EQ(cache.view(1).slot_pos, nullptr);
  }
  EXPECT_EQ(pool_.n_used(), 0);
}

TEST_F(KvCacheTest, ForkSharesUntilWritten) {
  KvCache a = make();
  fill(a, 0, 100);
  const int64_t before = pool_.n_used();
  KvCache b = a.fork();
  EXPECT_EQ(pool_.n_used(), before);
  fill(b, 100, 110, 500);  // copies only the last page of each head
  EXPECT_EQ(pool_.n_used(), before + kLayers * kHeads);
  fill(a, 100, 120);
  expect_tokens(a, 0, 0, range(0, 120));
  const auto [k, v] = read(b.view(0), 0);
  EXPECT_EQ(v[105 * kDim], 500 - value(0, 0, 105, 0));
  EXPECT_EQ(v[50 * kDim], -value(0, 0, 50, 0));
}

TEST_F(KvCacheTest, TruncateUndoesTokens) {
  KvCache cache = make();
  fill(cache, 0, 150);
  cache.truncate(64);
  EXPECT_EQ(cache.n_pages(), kLayers * kHeads);
  fill(cache, 64, 80);
  expect_tokens(cache, 0, 0, range(0, 80));
}

TEST_F(KvCacheTest, StaticCapacityIsReservedAndEnforced) {
  KvCache cache = make(128);
  EXPECT_EQ(cache.n_pages(), kLayers * kHeads * 2);
  fill(cache, 0, 128);
  EXPECT_EQ(cache.n_pages(), kLayers * kHeads * 2);
  EXPECT_THROW(fill(cache, 128, 129), Error);
  cache.clear();
  EXPECT_EQ(pool_.n_used(), 0);
}

TEST_F(KvCacheTest, StaticForkCopiesReservedPagesBeforeWriting) {
  KvCache a = make(128);
  fill(a, 0, 64);
  KvCache b = a.fork();
  fill(a, 64, 70);
  fill(b, 64, 70, 2.0f);
  expect_tokens(a, 0, 0, range(0, 70));
}

TEST_F(KvCacheTest, ExhaustedPoolIsAnErrorAndKeepsExistingSlots) {
  PagePool small = pool_of(kLayers * kHeads);
  {
    KvCache cache = make(small);
    fill(cache, 0, 64);
    EXPECT_THROW(fill(cache, 64, 65), Error);
    expect_tokens(cache, 1, 2, range(0, 64));
  }
  EXPECT_EQ(small.n_used(), 0);
  EXPECT_THROW(make(small, 1000), Error);
  EXPECT_EQ(small.n_used(), 0);
}

TEST_F(KvCacheTest, PagesOfAHeadStayMostlyContiguous) {
  KvCache cache = make();
  for (int32_t t = 0; t < 64 * 40; t += 32) fill(cache, t, t + 32);
  const KvView view = cache.view(1);
  int32_t breaks = 0;
  for (int32_t i = 1; i < 40; ++i)
    breaks += view.pages[view.page_stride + i] != view.pages[view.page_stride + i - 1] + 1;
  EXPECT_LE(breaks, 9);  // runs of 1, 1, 1, 1, 2, 3, 4, 6, 9, 14: half of the pages before
}

// Two runs of one sequence in one layer: each view ends with its own run, whatever is appended later.
TEST_F(KvCacheTest, ViewsOfTwoRunsDoNotSeeEachOthersSlots) {
  KvCache cache = make();
  cache.reserve(1000);
  const std::vector<int32_t> first = range(0, 40), second = range(50, 250);
  std::vector<int32_t> first_lengths(kHeads), second_lengths(kHeads);
  const KvView a = cache.append(0, first, first_lengths.data());
  write(a, 0, first);
  const KvView live = cache.append(0, range(40, 50));  // slots from another source for the gap
  write(live, 0, range(40, 50));
  const KvView b = cache.append(0, second, second_lengths.data());
  write(b, 0, second);
  for (int32_t h = 0; h < kHeads; ++h) {
    EXPECT_EQ(a.n_slots[h], 40);
    EXPECT_EQ(b.n_slots[h], 250);
    EXPECT_EQ(live.n_slots[h], 250);
    expect_rows(a, 0, h, range(0, 40));
    expect_rows(b, 0, h, range(0, 250));
  }
  EXPECT_EQ(a.pages, b.pages);  // tables with room do not move
  EXPECT_EQ(cache.n_slots(0, 0), 250);
}

TEST_F(KvCacheTest, PlacesCanDifferFromIndices) {
  KvCache cache = make();
  const std::vector<int32_t> tokens = {0, 1, 4, 5};
  EXPECT_EQ(cache.append(0, {tokens.data(), 2}).slot_pos, nullptr);
  const KvView view = cache.append(0, {tokens.data() + 2, 2});
  ASSERT_NE(view.slot_pos, nullptr);
  for (int32_t i = 0; i < 4; ++i) EXPECT_EQ(view.slot_pos[2 * view.slot_stride + i], tokens[static_cast<size_t>(i)]);
  EXPECT_EQ(cache.slot_places(0, 1)[3], 5);
  EXPECT_EQ(cache.slot_tokens(0, 1)[3], 5);
  EXPECT_FALSE(cache.complete(4));  // two tokens lack their slots
  cache.truncate(2);
  EXPECT_EQ(cache.view(0).slot_pos, nullptr);
}

// Layers with KV of their own, one that uses another's, one without, and another head size.
TEST_F(KvCacheTest, LayersDiffer) {
  const KvShape shape{
      .layers = {{.n_kv_heads = 2, .head_dim = 32}, {.shares = 0}, {}, {.n_kv_heads = 1, .head_dim = 64}},
      .codec = KvCodec::kF32};
  PagePools pools(*backend_, shape, 1 << 20);
  {
    KvCache cache(pools, *backend_, shape);
    cache.reserve(200);
    fill(cache, 0, 100);
    EXPECT_EQ(cache.n_pages(), 2 * 2 + 2);
    EXPECT_EQ(cache.bytes(), 4 * pools.of(32, shape.codec).page_bytes() + 2 * pools.of(64, shape.codec).page_bytes());
    EXPECT_EQ(cache.bytes(), pools.used_bytes());
    expect_tokens(cache, 0, 1, range(0, 100));
    expect_rows(cache.view(1), 0, 1, range(0, 100));
    EXPECT_EQ(cache.view(1).pages, cache.view(0).pages);
    EXPECT_EQ(cache.view(2).n_kv_heads, 0);
    expect_tokens(cache, 3, 0, range(0, 100));
    EXPECT_TRUE(cache.complete(100));

    KvCache copy = cache.fork();
    KeepPlan plan;
    plan.layers = {{{.keep = range(0, 100, 2)}, {.keep = range(0, 100)}}, {}, {}, {{.keep = {99}}}};
    copy.compact(plan);
    expect_tokens(copy, 0, 0, range(0, 100, 2));
    expect_rows(copy.view(1), 0, 0, range(0, 100, 2));
    expect_tokens(copy, 3, 0, {99});
    copy.hide(1, 1, 7);
    EXPECT_EQ(copy.n_hidden(0, 1), 1);
    EXPECT_FALSE(copy.complete(1));
    cache.truncate(10);
    expect_tokens(cache, 3, 0, range(0, 10));
    expect_tokens(copy, 0, 1, range(0, 100));
  }
  EXPECT_EQ(pools.used_bytes(), 0);
}

// The runs of a step reach a layer that shares another's KV when the other has all of them already.
TEST_F(KvCacheTest, RunsOfASharingLayerEndAtTheirOwnLength) {
  const KvShape shape{.layers = {{.n_kv_heads = 2, .head_dim = kDim}, {.shares = 0}}, .codec = KvCodec::kF32};
  KvCache cache(pool_, *backend_, shape);
  cache.reserve(100);
  std::vector<int32_t> lengths(2);
  cache.append(0, range(0, 5), lengths.data());
  cache.append(0, range(9, 12), lengths.data());
  EXPECT_EQ(lengths[1], 8);
  const KvView first = cache.append(1, range(0, 5), lengths.data());
  EXPECT_EQ(first.n_slots[0], 5);
  EXPECT_EQ(first.n_slots[1], 5);
  EXPECT_EQ(cache.append(1, range(9, 12), lengths.data()).n_slots[0], 8);
  EXPECT_EQ(cache.n_slots(1, 0), 8);
}

// ---- a step that fails ----------------------------------------------------------------------------------------------

class KvCacheRollback : public KvCacheFixture {
 protected:
  // A cache of 100 tokens with entries in every table.
  void prepare(KvCache& cache) {
    cache.set_planes(2);
    fill(cache, 0, 100);
    cache.hide(0, 1, 7);
    for (float& x : cache.plane(1, 2, 1)) x = 3;
  }
  void expect_prepared(KvCache& cache) {
    for (int32_t l = 0; l < kLayers; ++l) {
      for (int32_t h = 0; h < kHeads; ++h) {
        expect_tokens(cache, l, h, range(0, 100));
        EXPECT_EQ(cache.n_hidden(l, h), l == 0 && h == 1 ? 1 : 0);
        for (float x : cache.plane(l, h, 1)) ASSERT_EQ(x, l == 1 && h == 2 ? 3 : 0);
      }
    }
    EXPECT_EQ(cache.view(0).slot_bias[cache.view(0).slot_stride + 7], -INFINITY);
    EXPECT_EQ(cache.view(1).slot_pos, nullptr);
  }
};

TEST_F(KvCacheRollback, RemovesAppendedSlotsAndFreesTheirPages) {
  KvCache cache = make();
  prepare(cache);
  const int64_t used = pool_.n_used();
  cache.begin_step();
  cache.append(0, range(150, 350));  // a gap: places are no longer indices
  EXPECT_NE(cache.view(0).slot_pos, nullptr);
  cache.rollback_step();
  EXPECT_EQ(cache.n_pages(), kLayers * kHeads * 2);
  EXPECT_EQ(pool_.n_used(), used);
  EXPECT_EQ(cache.view(0).slot_pos, nullptr);
  expect_prepared(cache);
  fill(cache, 100, 130);
  expect_tokens(cache, 0, 1, range(0, 130));
  EXPECT_EQ(cache.plane(1, 2, 1)[99], 3);
  EXPECT_EQ(cache.plane(1, 2, 1)[100], 0);
}

TEST_F(KvCacheRollback, PoolRunsOutAtEveryAllocation) {
  // 2 pages a head, and then `free` more: the step asks for two pages in each of six heads.
  for (int32_t free = 0; free < 2 * kLayers * kHeads; ++free) {
    PagePool small = pool_of(2 * kLayers * kHeads + free);
    KvCache cache = make(small);
    prepare(cache);
    const int64_t used = small.n_used();
    cache.begin_step();
    EXPECT_THROW(fill(cache, 100, 250), Error) << free;
    cache.rollback_step();
    EXPECT_EQ(small.n_used(), used) << free;
    expect_prepared(cache);
  }
}

TEST_F(KvCacheRollback, PoolRunsOutWhileSharedPagesAreCopied) {
  for (int32_t free = 0; free < kLayers * kHeads; ++free) {
    PagePool small = pool_of(2 * kLayers * kHeads + free);
    KvCache cache = make(small);
    prepare(cache);
    KvCache copy = cache.fork();
    copy.begin_step();
    EXPECT_THROW(fill(copy, 100, 101), Error) << free;
    copy.rollback_step();
    expect_prepared(copy);
    expect_prepared(cache);
    cache.begin_step();
    EXPECT_THROW(fill(cache, 100, 250), Error) << free;
    cache.rollback_step();
    expect_prepared(copy);
    expect_prepared(cache);
  }
}

TEST_F(KvCacheRollback, StaticCapacityKeepsItsPages) {
  KvCache cache = make(128);
  prepare(cache);
  cache.begin_step();
  EXPECT_THROW(fill(cache, 100, 129), Error);
  cache.rollback_step();
  expect_prepared(cache);
  cache.begin_step();
  cache.append(0, range(100, 128));
  EXPECT_THROW(fill(cache, 128, 129), Error);
  cache.rollback_step();
  expect_prepared(cache);
  EXPECT_EQ(cache.n_pages(), 2 * kLayers * kHeads);
  fill(cache, 100, 128);
  expect_tokens(cache, 1, 1, range(0, 128));
}

TEST_F(KvCacheRollback, DoesNothingWithoutAStep) {
  KvCache cache = make();
  prepare(cache);
  cache.rollback_step();
  expect_prepared(cache);
  cache.begin_step();
  fill(cache, 100, 110);
  cache.truncate(105);  // the step is over
  cache.rollback_step();
  EXPECT_EQ(cache.n_slots(0, 0), 105);
}

}  // namespace
}  // namespace vlcache
