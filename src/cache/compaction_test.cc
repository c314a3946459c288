// Compaction, merging and sweeping, against plain vectors of slots.
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
  EXPECT_FALSE(cache.exact());
  ASSERT_NE(cache.view(0).slot_pos, nullptr);
  EXPECT_EQ(cache.view(0).slot_pos[5], 15);
  fill(cache, 300, 303);  // goes on at the true position
  EXPECT_EQ(cache.slot_tokens(0, 0).back(), 302);
  EXPECT_EQ(cache.view(1).slot_pos[2 * cache.view(1).slot_stride + 3], 302);
}

TEST_F(CompactionTest, CompactingAForkLeavesTheOriginal) {
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

}  // namespace
}  // namespace vlcache
