// The defaults, and that engines keep to them.
#include "engine/memory_plan.h"

#include "base/os/machine.h"
#include "engine/engine_caches.h"
#include "engine/engine_testing.h"

namespace vlcache {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

TEST(MemoryPlan, DefaultsAreShares) {
  EXPECT_EQ(default_cache_bytes(16 * kGiB), 4 * kGiB);
  EXPECT_EQ(default_kv_bytes(16 * kGiB, 4 * kGiB, 4 * kGiB), 6 * kGiB);
  EXPECT_EQ(default_kv_bytes(16 * kGiB, 0, 0), 12 * kGiB);
  EXPECT_EQ(default_kv_bytes(16 * kGiB, 13 * kGiB, 4 * kGiB), kGiB);  // nothing is left
  EXPECT_EQ(default_kv_bytes(16 * kGiB, kGiB, 100 * kGiB), kGiB);
}

TEST(MemoryPlan, EngineFollowsThePlan) {
  const int64_t usable = usable_memory(), cache = 3 << 20;
  const std::unique_ptr<Engine> engine = make_engine(2, "auto", /*kv_memory_bytes=*/0, "llama", 4096, cache);
  ASSERT_GT(engine->model().weight_bytes(), 0);
  EXPECT_EQ(engine->pools().max_bytes(), default_kv_bytes(usable, engine->model().weight_bytes(), cache));
  EXPECT_EQ(engine->caches().cache_budget().max_bytes(), cache);
  EXPECT_EQ(make_engine(2, "auto", 5 << 20)->pools().max_bytes(), 5 << 20);
}

}  // namespace
}  // namespace vlcache
