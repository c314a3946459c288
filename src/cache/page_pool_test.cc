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

}  // namespace
}  // namespace vlcache
