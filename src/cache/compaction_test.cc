#include <cmath>

#include "cache/kv_cache_testing.h"

namespace vlcache {
namespace {

class CompactionTest : public KvCacheFixture {};

TEST_F(CompactionTest, CompactionKeepsOrderAndFreesPages) {
  KvCache cache = make();
  fill(cache, 0, 300);
  KeepPlan plan = keep_everywhere(range(0, 300, 3));
  plan.layers[1][0].keep = range(0, 300);  // unchanged
  plan.layers[1][1].keep = {};             // emptied
  plan.layers[1][2].keep = range(299, 300);
  cache.compact(plan);
  expect_tokens(cache, 0, 1, range(0, 300, 3));
  expect_tokens(cache, 1, 0, range(0, 300));
  expect_tokens(cache, 1, 1, {});
  expect_tokens(cache, 1, 2, {299});
  EXPECT_EQ(cache.n_pages(), 3 * 2 + 5 + 0 + 1);
  EXPECT_EQ(pool_.n_used(), cache.n_pages());
  EXPECT_FALSE(cache.complete(1));
  ASSERT_NE(cache.view(0).slot_pos, nullptr);
  EXPECT_EQ(cache.view(0).slot_pos[5], 15);
  fill(cache, 300, 303);  // continues at the true position
  EXPECT_EQ(cache.slot_tokens(0, 0).back(), 302);
  EXPECT_EQ(cache.view(1).slot_pos[2 * cache.view(1).slot_stride + 3], 302);
}

TEST_F(CompactionTest, CompactingAForkDoesNotChangeTheOriginal) {
  KvCache a = make();
  fill(a, 0, 200);
  KvCache b = a.fork();
  std::vector<int32_t> keep = range(0, 64);
  for (int32_t i = 70; i < 200; i += 2) keep.push_back(i);
  b.compact(keep_everywhere(keep));
  expect_tokens(a, 1, 1, range(0, 200));
  expect_tokens(b, 1, 1, keep);
  EXPECT_EQ(b.view(0).pages[0], a.view(0).pages[0]);  // the untouched first page is still shared
  EXPECT_NE(b.view(0).pages[1], a.view(0).pages[1]);
}

// Taking fresh pages may make the reserve release the caches that shared the old ones: unneeded pages are returned.
TEST_F(CompactionTest, UnneededPagesAreReturned) {
  struct Others final : PageReserve {
    bool free_pages() override {
      for (KvCache* cache : caches) cache->clear();
      return !std::exchange(caches, {}).empty();
    }
    double least_priority() const override { return 0; }
    std::vector<KvCache*> caches;
  } others;
  PageBudget budget{.max_bytes = (5 * kLayers * kHeads + 3) * pool_.page_bytes(), .reserve = &others};
  PagePool pool(pool_.page_bytes(), 4096, &budget);
  KvCache a = make(pool), c = make(pool);
  fill(a, 0, 200);
  fill(c, 0, 64);
  KvCache b = a.fork();
  others.caches = {&a, &c};
  b.compact(keep_everywhere(range(0, 200, 2)));
  EXPECT_TRUE(others.caches.empty());
  expect_tokens(b, 1, 1, range(0, 200, 2));
  EXPECT_EQ(pool.n_used(), b.n_pages());
}

TEST_F(CompactionTest, MergesBecomeOneWeightedSlotWithBias) {
  KvCache cache = make();
  fill(cache, 0, 10);
  KeepPlan plan = keep_everywhere(range(0, 10));
  plan.layers[0][1] = {.keep = {0, 1, 8, 9},
                       .merges = {{.sources = {3, 5}, .weights = {0.25f, 0.75f}}},
                       .slot_bias = {0, 0, 0.7f, 0, 0}};
  cache.compact(plan);
  ASSERT_EQ(cache.n_slots(0, 1), 5);
  const auto [k, v] = read(cache.view(0), 1);
  EXPECT_FLOAT_EQ(k[2 * kDim + 4], 0.25f * value(0, 1, 3, 4) + 0.75f * value(0, 1, 5, 4));
  EXPECT_FLOAT_EQ(v[2 * kDim + 4], -0.25f * value(0, 1, 3, 4) - 0.75f * value(0, 1, 5, 4));
  EXPECT_EQ(cache.slot_tokens(0, 1)[2], merged_token(3));
  EXPECT_EQ(cache.slot_tokens(0, 1)[3], 8);
  const KvView view = cache.view(0);
  ASSERT_NE(view.slot_bias, nullptr);
  EXPECT_EQ(view.slot_bias[view.slot_stride + 2], 0.7f);
  EXPECT_EQ(view.slot_bias[2], 0.0f);
  EXPECT_EQ(view.slot_pos[view.slot_stride + 2], 3);
  EXPECT_EQ(cache.view(1).slot_bias, nullptr);
}

// A merged slot stands at its first source's position, and is removed when that token is truncated.
TEST_F(CompactionTest, TruncatingUsesTheFirstSourceOfAMerge) {
  KvCache cache = make();
  fill(cache, 0, 10);
  KeepPlan plan = keep_everywhere({0, 9});
  plan.layers[0][0].merges = {{.sources = {7, 3}, .weights = {0.5f, 0.5f}}};
  plan.layers[0][1].merges = {{.sources = {8, 7}, .weights = {0.5f, 0.5f}}};
  cache.compact(plan);
  cache.truncate(5);
  EXPECT_EQ(cache.n_slots(0, 0), 2);
  EXPECT_EQ(cache.slot_tokens(0, 0)[1], merged_token(3));
  EXPECT_EQ(cache.n_slots(0, 1), 1);
  EXPECT_EQ(cache.n_slots(0, 2), 1);
}

TEST_F(CompactionTest, PlanesMoveAndMergesSumThem) {
  KvCache cache = make();
  cache.set_planes(2);
  fill(cache, 0, 100);
  for (int32_t i = 0; i < 100; ++i) cache.plane(1, 2, 1)[static_cast<size_t>(i)] = static_cast<float>(i);
  KeepPlan plan = keep_everywhere(range(0, 100));
  plan.layers[1][2] = {.keep = {10, 50, 99}, .merges = {{.sources = {20, 30, 40}, .weights = {1, 0, 0}}}};
  cache.compact(plan);
  const std::span<const float> sums = cache.plane(1, 2, 1);
  EXPECT_EQ(std::vector<float>(sums.begin(), sums.end()), (std::vector<float>{10, 90, 50, 99}));
  KvCache copy = cache.fork();
  EXPECT_EQ(copy.plane(1, 2, 1)[1], 90);
  copy.plane(1, 2, 1)[1] = 1;
  EXPECT_EQ(cache.plane(1, 2, 1)[1], 90);
}

TEST_F(CompactionTest, TablesShrinkWithTheirPagesAndKeepHeadroom) {
  KvCache cache = make();
  fill(cache, 0, 64 * 100);
  EXPECT_GE(cache.view(0).page_stride, 100);
  cache.compact(keep_everywhere(range(0, 6400, 10)));
  EXPECT_EQ(cache.view(0).page_stride, 10 + 16);
  EXPECT_EQ(cache.view(0).slot_stride, 26 * kPageSlots);
  expect_tokens(cache, 1, 2, range(0, 6400, 10));
  const KvView before = cache.view(0);
  fill(cache, 6400, 6400 + 1024);  // an answer
  EXPECT_EQ(cache.view(0).pages, before.pages);
  cache.compact(keep_everywhere(range(0, 600)));
  EXPECT_EQ(cache.view(0).pages, before.pages);  // too little to shrink
  fill(cache, 7424, 7424 + 6400);
  cache.truncate(100);
  EXPECT_EQ(cache.view(0).page_stride, 1 + 16);
}

// ---- sweeping -------------------------------------------------------------------------------------------------------

TEST_F(CompactionTest, HiddenSlotsAreSweptPageByPage) {
  KvCache cache = make();
  fill(cache, 0, 300);
  for (int32_t i = 0; i < 63; ++i) cache.hide(0, 1, 4 + i);
  EXPECT_EQ(cache.view(0).slot_bias[cache.view(0).slot_stride + 4], -INFINITY);
  cache.sweep();
  EXPECT_EQ(cache.n_slots(0, 1), 300);
  EXPECT_EQ(cache.n_hidden(0, 1), 63);
  cache.hide(0, 1, 67);
  cache.hide(0, 2, 0);
  const int32_t* pages = cache.view(0).pages + cache.view(0).page_stride;
  const std::vector<int32_t> before(pages, pages + 5);
  cache.sweep();
  std::vector<int32_t> left = range(0, 4);
  for (int32_t t : range(68, 300)) left.push_back(t);
  expect_tokens(cache, 0, 1, left);
  expect_tokens(cache, 0, 0, range(0, 300));
  EXPECT_EQ(cache.n_hidden(0, 1), 0);
  EXPECT_EQ(cache.n_hidden(0, 2), 1);
  EXPECT_EQ(cache.n_pages(), 5 * kLayers * kHeads - 1);
  EXPECT_EQ(std::vector<int32_t>(pages, pages + 4), std::vector<int32_t>(before.begin() + 1, before.end()));
}

TEST_F(CompactionTest, SweepingAFullStaticCacheFreesSlots) {
  KvCache cache = make(128);
  fill(cache, 0, 128);
  for (int32_t l = 0; l < kLayers; ++l) {
    for (int32_t h = 0; h < kHeads; ++h) {
      for (int32_t i = 0; i < 64; ++i) cache.hide(l, h, 2 * i);
    }
  }
  cache.sweep();
  EXPECT_EQ(cache.n_pages(), 2 * kLayers * kHeads);
  fill(cache, 128, 192);
  std::vector<int32_t> left = range(1, 128, 2);
  for (int32_t t : range(128, 192)) left.push_back(t);
  expect_tokens(cache, 1, 0, left);
}

TEST_F(CompactionTest, AllSlotsOfAHeadCanBeEvicted) {
  KvCache cache = make();
  fill(cache, 0, 70);
  for (int32_t i = 0; i < 70; ++i) cache.hide(1, 1, i);
  cache.sweep();
  EXPECT_EQ(cache.n_slots(1, 1), 0);
  EXPECT_EQ(cache.n_pages(), 2 * (kLayers * kHeads - 1));
  fill(cache, 70, 80);
  expect_tokens(cache, 1, 1, range(70, 80));
}

// ---- shared pages while the pool runs out ---------------------------------------------------------------------------

class SharedPagesTest : public CompactionTest {
 protected:
  static constexpr int64_t kPages = 4 * kLayers * kHeads;  // of 250 tokens, shared by two caches

  // `change` writes shared pages: it throws while no pages are free for the copies, and then has changed nothing.
  void expect_nothing_lost(FunctionRef<void(KvCache&)> change, int64_t n_copies) {
    for (int64_t free = 0; free <= n_copies; ++free) {
      PagePool small = pool_of(kPages + free);
      {
        KvCache cache = make(small);
        fill(cache, 0, 250);
        for (int32_t i = 0; i < 64; ++i) {
          for (int32_t h = 0; h < kHeads; ++h) cache.hide(1, h, 3 * i + h);
        }
        KvCache copy = cache.fork();
        if (free == n_copies) {
          change(copy);
          EXPECT_LT(copy.n_slots(1, 1), 250);
        } else {
          EXPECT_THROW(change(copy), Error) << free;
          EXPECT_EQ(small.n_used(), kPages);
          for (int32_t h = 0; h < kHeads; ++h) expect_tokens(copy, 1, h, range(0, 250));
          EXPECT_EQ(copy.n_hidden(1, 1), 64);
        }
        for (int32_t h = 0; h < kHeads; ++h) expect_tokens(cache, 1, h, range(0, 250));
      }
      EXPECT_EQ(small.n_used(), 0) << "pages lost with " << free << " to be had";
    }
  }
};

TEST_F(SharedPagesTest, Compacting) {
  // Every other slot: two pages of each head are written.
  expect_nothing_lost([&](KvCache& cache) { cache.compact(keep_everywhere(range(0, 250, 2))); }, 2 * kLayers * kHeads);
}

TEST_F(SharedPagesTest, Sweeping) {
  // Layer 1 alone, and of its 186 slots a head the last page's are relinked.
  expect_nothing_lost([](KvCache& cache) { cache.sweep(); }, 2 * kHeads);
}

TEST_F(SharedPagesTest, Merging) {
  KeepPlan plan = keep_everywhere(range(0, 249));
  for (auto& heads : plan.layers) {
    for (KeepPlan::Head& head : heads) head.merges = {{.sources = {249}, .weights = {1}}};  // at its position
  }
  plan.layers[1][1].keep = range(0, 248);
  expect_nothing_lost([&](KvCache& cache) { cache.compact(plan); }, kLayers * kHeads);
}

}  // namespace
}  // namespace vlcache
