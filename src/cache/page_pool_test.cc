#include "cache/page_pool.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "cache/page_pools.h"
#include "ops/factory.h"

namespace vlcache {
namespace {

TEST(PagePool, AdjacentFreedPagesBecomeOneRun) {
  PagePool pool(4096, 8);
  const PageRun all = pool.allocate_run(8);
  EXPECT_EQ(all.size(), 8);
  EXPECT_THROW(pool.allocate(), Error);
  for (int32_t page : {5, 3, 4, 0}) pool.release(page);
  const PageRun run = pool.allocate_run(3);
  EXPECT_EQ(run.begin, 3);
  EXPECT_EQ(run.size(), 3);
  EXPECT_EQ(pool.allocate_run(4).size(), 1);  // the remaining page
  EXPECT_THROW(pool.allocate(), Error);
}

TEST(PagePool, TrimReleasesMemoryAndReusesLowPagesFirst) {
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
}

TEST(PagePools, HeadSizesShareOneBudget) {
  const auto backend = make_backend("ref", DType::kF32);
  const KvShape shape{.layers = {{.n_kv_heads = 2, .head_dim = 32}, {.n_kv_heads = 1, .head_dim = 64}},
                      .codec = KvCodec::kF32};
  const int64_t small = backend->kv_page_bytes(KvCodec::kF32, 32), large = backend->kv_page_bytes(KvCodec::kF32, 64);
  PagePools pools(*backend, shape, 2 * large + small);
  EXPECT_NE(&pools.of(32, KvCodec::kF32), &pools.of(64, KvCodec::kF32));
  const PageRun run = pools.of(32, KvCodec::kF32).allocate_run(3);
  EXPECT_EQ(run.size(), 3);
  EXPECT_EQ(pools.of(64, KvCodec::kF32).allocate_run(2).size(), 1);  // the rest of the budget
  EXPECT_EQ(pools.used_bytes(), 3 * small + large);
  EXPECT_THROW(pools.of(64, KvCodec::kF32).allocate(), Error);
  EXPECT_THROW(pools.of(32, KvCodec::kF32).allocate(), Error);
  pools.of(32, KvCodec::kF32).release(run.begin);
  EXPECT_EQ(pools.of(32, KvCodec::kF32).allocate(), run.begin);
}

// Pages of another codec come later, under the same budget; reserves free pages in the order of their priorities.
TEST(PagePools, CodecsShareOneBudget) {
  struct Reserve final : PageReserve {
    bool free_pages() override {
      if (pages.empty()) return false;
      pool->release(pages.back());
      pages.pop_back();
      return true;
    }
    double least_priority() const override { return priority; }
    PagePool* pool = nullptr;
    std::vector<int32_t> pages;
    double priority = 0;
  };
  const auto backend = make_backend("ref", DType::kF32);
  const int64_t bytes = backend->kv_page_bytes(KvCodec::kF32, 32);
  PagePools pools(*backend, KvShape::uniform(2, 1, 32, KvCodec::kF32), 4 * bytes);
  PagePool& values = pools.of(32, KvCodec::kF32);
  KvShape coded = KvShape::uniform(2, 1, 32, KvCodec::kF32);
  for (KvLayerShape& layer : coded.layers) layer.coded = KvCodec::kInt8;
  pools.add(coded);
  EXPECT_EQ(&pools.of(32, KvCodec::kF32), &values);
  EXPECT_EQ(pools.codecs().size(), 2u);
  PagePool& codes = pools.of(32, KvCodec::kInt8);
  Reserve first, second;
  first.pool = &values, first.priority = 2;
  second.pool = &codes, second.priority = 1;
  pools.add_reserve(first);
  pools.add_reserve(second);
  for (int i = 0; i < 2; ++i) first.pages.push_back(values.allocate()), second.pages.push_back(codes.allocate());
  for (int i = 0; i < 3; ++i) {
    codes.allocate();
    EXPECT_LE(pools.used_bytes(), pools.max_bytes());
  }
  EXPECT_EQ(first.pages.size(), 2u);  // the other has had room for these
  while (!second.pages.empty()) codes.allocate();
  EXPECT_EQ(first.pages.size(), 2u);
  values.allocate();
  EXPECT_LT(first.pages.size(), 2u);
  EXPECT_EQ(pools.used_bytes(), pools.used_bytes(KvCodec::kF32) + pools.used_bytes(KvCodec::kInt8));
  EXPECT_LE(pools.used_bytes(), pools.max_bytes());
  pools.remove_reserve(first), pools.remove_reserve(second);
}

}  // namespace
}  // namespace vlcache
