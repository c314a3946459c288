// Page accounting, copy on write, compaction and merging, against plain vectors.
#include "cache/kv_cache.h"

#include <gtest/gtest.h>

#include <numeric>

#include "base/error.h"
#include "ops/factory.h"

namespace vlcache {
namespace {

constexpr int32_t kLayers = 2, kHeads = 3, kDim = 32;

class KvCacheTest : public testing::Test {
 protected:
  KvCacheTest()
      : backend_(make_backend("ref", DType::kF32)), pool_(backend_->kv_page_bytes(KvCodec::kF32, kDim), 4096) {}

  KvCache make(int64_t capacity = 0) { return {pool_, *backend_, {kLayers, kHeads, kDim, KvCodec::kF32}, capacity}; }

  static float value(int32_t layer, int32_t head, int32_t token, int64_t c) {
    return static_cast<float>(layer * 100000 + head * 10000 + token) + static_cast<float>(c) * 0.001f;
  }

  // Appends tokens [begin, end) to every layer; K holds value(), V its negative plus `salt`.
  void fill(KvCache& cache, int32_t begin, int32_t end, float salt = 0) {
    std::vector<SlotMeta> meta;
    std::vector<int32_t> tokens;
    for (int32_t t = begin; t < end; ++t) {
      meta.push_back({.t = t});
      tokens.push_back(t);
    }
    cache.add_tokens(meta);
    for (int32_t l = 0; l < kLayers; ++l) {
      const KvView view = cache.append(l, tokens);
      std::vector<float> k, v;
      for (int32_t t : tokens) {
        for (int32_t h = 0; h < kHeads; ++h) {
          for (int64_t c = 0; c < kDim; ++c) {
            k.push_back(value(l, h, t, c));
            v.push_back(salt - value(l, h, t, c));
          }
        }
      }
      const int64_t n = end - begin;
      backend_->kv_write(Tensor(k.data(), DType::kF32, {n, kHeads, kDim}),
                         Tensor(v.data(), DType::kF32, {n, kHeads, kDim}), view);
    }
  }

  std::pair<std::vector<float>, std::vector<float>> read(const KvCache& cache, int32_t layer, int32_t head) {
    const int32_t n = cache.n_slots(layer, head);
    std::vector<int32_t> slots(static_cast<size_t>(n));
    std::iota(slots.begin(), slots.end(), 0);
    std::vector<float> k(static_cast<size_t>(n * kDim)), v(k.size());
    backend_->kv_read(cache.view(layer), head, slots, Tensor(k.data(), DType::kF32, {n, kDim}),
                      Tensor(v.data(), DType::kF32, {n, kDim}));
    return {k, v};
  }

  void expect_tokens(const KvCache& cache, int32_t layer, int32_t head, const std::vector<int32_t>& tokens,
                     float salt = 0) {
    ASSERT_EQ(cache.n_slots(layer, head), static_cast<int32_t>(tokens.size()));
    const auto [k, v] = read(cache, layer, head);
    for (size_t i = 0; i < tokens.size(); ++i) {
      ASSERT_EQ(cache.slot_tokens(layer, head)[i], tokens[i]);
      ASSERT_EQ(k[i * kDim + 7], value(layer, head, tokens[i], 7)) << "slot " << i;
      ASSERT_EQ(v[i * kDim + 7], salt - value(layer, head, tokens[i], 7)) << "slot " << i;
    }
  }

  static std::vector<int32_t> range(int32_t begin, int32_t end, int32_t step = 1) {
    std::vector<int32_t> r;
    for (int32_t i = begin; i < end; i += step) r.push_back(i);
    return r;
  }

  static KeepPlan keep_everywhere(const std::vector<int32_t>& keep) {
    KeepPlan plan;
    plan.layers.assign(
        kLayers, std::vector<KeepPlan::Head>(kHeads, KeepPlan::Head{.keep = keep, .merges = {}, .slot_bias = {}}));
    return plan;
  }

  std::unique_ptr<Backend> backend_;
  PagePool pool_;
};

TEST_F(KvCacheTest, GrowsPageByPageAndGivesAllBack) {
  {
    KvCache cache = make();
    fill(cache, 0, 65);
    EXPECT_EQ(cache.n_pages(), kLayers * kHeads * 2);
    fill(cache, 65, 400);
    EXPECT_EQ(cache.n_pages(), kLayers * kHeads * 7);
    EXPECT_GE(pool_.n_used(), cache.n_pages());
    EXPECT_TRUE(cache.exact());
    expect_tokens(cache, 1, 2, range(0, 400));
    EXPECT_EQ(cache.view(1).slot_pos, nullptr);
  }
  EXPECT_EQ(pool_.n_used(), 0);
}

TEST_F(KvCacheTest, CompactionKeepsOrderAndFreesPages) {
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

TEST_F(KvCacheTest, ForkSharesUntilWritten) {
  KvCache a = make();
  fill(a, 0, 100);
  const int64_t before = pool_.n_used();
  KvCache b = a.fork();
  EXPECT_EQ(pool_.n_used(), before);
  fill(b, 100, 110, 0.5f);  // copies only the last page of each head
  EXPECT_EQ(pool_.n_used(), before + kLayers * kHeads);
  fill(a, 100, 120);
  expect_tokens(a, 0, 0, range(0, 120));
  const auto [k, v] = read(b, 0, 0);
  EXPECT_EQ(v[105 * kDim], 0.5f - value(0, 0, 105, 0));
  EXPECT_EQ(v[50 * kDim], -value(0, 0, 50, 0));
}

TEST_F(KvCacheTest, CompactingAForkLeavesTheOriginal) {
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

TEST_F(KvCacheTest, MergesBecomeOneWeightedSlotWithBias) {
  KvCache cache = make();
  fill(cache, 0, 10);
  KeepPlan plan = keep_everywhere(range(0, 10));
  plan.layers[0][1] = {.keep = {0, 1, 8, 9},
                       .merges = {{.sources = {3, 5}, .weights = {0.25f, 0.75f}}},
                       .slot_bias = {0, 0, 0.7f, 0, 0}};
  cache.compact(plan);
  ASSERT_EQ(cache.n_slots(0, 1), 5);
  const auto [k, v] = read(cache, 0, 1);
  EXPECT_FLOAT_EQ(k[2 * kDim + 4], 0.25f * value(0, 1, 3, 4) + 0.75f * value(0, 1, 5, 4));
  EXPECT_FLOAT_EQ(v[2 * kDim + 4], -0.25f * value(0, 1, 3, 4) - 0.75f * value(0, 1, 5, 4));
  EXPECT_EQ(cache.slot_tokens(0, 1)[2], -1);
  EXPECT_EQ(cache.slot_tokens(0, 1)[3], 8);
  const KvView view = cache.view(0);
  ASSERT_NE(view.slot_bias, nullptr);
  EXPECT_EQ(view.slot_bias[view.slot_stride + 2], 0.7f);
  EXPECT_EQ(view.slot_bias[2], 0.0f);
  EXPECT_EQ(view.slot_pos[view.slot_stride + 2], 3);
  EXPECT_EQ(cache.view(1).slot_bias, nullptr);
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

TEST_F(KvCacheTest, ExhaustedPoolIsAnErrorAndLosesNothing) {
  PagePool small(backend_->kv_page_bytes(KvCodec::kF32, kDim), kLayers * kHeads);
  {
    KvCache cache(small, *backend_, {kLayers, kHeads, kDim, KvCodec::kF32});
    fill(cache, 0, 64);
    EXPECT_THROW(fill(cache, 64, 65), Error);
    expect_tokens(cache, 1, 2, range(0, 64));
  }
  EXPECT_EQ(small.n_used(), 0);
  EXPECT_THROW(KvCache(small, *backend_, {kLayers, kHeads, kDim, KvCodec::kF32}, 1000), Error);
  EXPECT_EQ(small.n_used(), 0);
}

TEST_F(KvCacheTest, PagesOfAHeadLieTogetherThoughHeadsGrowInTurn) {
  KvCache cache = make();
  for (int32_t t = 0; t < 64 * 40; t += 32) fill(cache, t, t + 32);
  const KvView view = cache.view(1);
  int32_t breaks = 0;
  for (int32_t i = 1; i < 40; ++i)
    breaks += view.pages[view.page_stride + i] != view.pages[view.page_stride + i - 1] + 1;
  EXPECT_LE(breaks, 9);  // runs of 1, 1, 1, 1, 2, 3, 4, 6, 9, 14: half of what there was
}

TEST(PagePool, FreedNeighboursBecomeOneRun) {
  PagePool pool(4096, 8);
  const PageRun all = pool.allocate_run(8);
  EXPECT_EQ(all.size(), 8);
  EXPECT_THROW(pool.allocate(), Error);
  for (int32_t page : {5, 3, 4, 0}) pool.release(page);
  const PageRun run = pool.allocate_run(3);
  EXPECT_EQ(run.begin, 3);
  EXPECT_EQ(run.size(), 3);
  EXPECT_EQ(pool.allocate_run(4).size(), 1);  // what is left
  EXPECT_THROW(pool.allocate(), Error);
}

TEST(PagePool, TrimGivesMemoryBackAndReusesLowPagesFirst) {
  PagePool pool(8192, 16);
  std::vector<int32_t> pages;
  for (int i = 0; i < 8; ++i) {
    pages.push_back(pool.allocate());
    pool.view().base[pages.back() * 8192] = std::byte{7};
  }
  for (int i : {6, 1, 2}) pool.release(pages[static_cast<size_t>(i)]);
  pool.trim();
  EXPECT_EQ(pool.view().base[2 * 8192], std::byte{0});
  EXPECT_EQ(pool.view().base[3 * 8192], std::byte{7});
  EXPECT_EQ(pool.allocate(), 1);
  EXPECT_EQ(pool.n_used(), 6);
  EXPECT_EQ(pool.peak_used(), 8);
}

}  // namespace
}  // namespace vlcache
