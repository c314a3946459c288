// The order of eviction across caches.
#include "reuse/cache_budget.h"

#include <gtest/gtest.h>

#include <optional>
#include <random>
#include <string>

namespace vlcache {
namespace {

Sha256Digest key(uint8_t first) {
  Sha256Digest digest{};
  digest[0] = first;
  return digest;
}

std::shared_ptr<const std::string> text(std::string value) {
  return std::make_shared<const std::string>(std::move(value));
}

TEST(CacheBudgetTest, FindsEntriesAndCountsUses) {
  CacheBudget budget(100);
  DigestCache cache(budget);
  EXPECT_EQ(cache.find<std::string>(key(1)), nullptr);
  cache.put(key(1), text("one"), 40, 1);
  cache.put(key(2), text("two"), 40, 1);
  EXPECT_EQ(*cache.find<std::string>(key(1)), "one");
  cache.put(key(1), text("uno"), 30, 1);
  EXPECT_EQ(*cache.find<std::string>(key(1)), "uno");
  EXPECT_EQ(cache.stats().bytes, 70);
  EXPECT_EQ(budget.used_bytes(), 70);
  cache.clear();
  EXPECT_EQ(budget.used_bytes(), 0);
}

TEST(CacheBudgetTest, EntryThatSavesLeastPerByteIsEvictedFirst) {
  CacheBudget budget(100);
  DigestCache a(budget), b(budget);
  a.put(key(1), text("large and cheap"), 50, 1);
  b.put(key(2), text("small and dear"), 30, 90);
  b.put(key(3), text("new"), 40, 10);  // 120 > 100: the first of a is evicted
  EXPECT_EQ(a.find<std::string>(key(1)), nullptr);
  EXPECT_NE(b.find<std::string>(key(2)), nullptr);
  EXPECT_EQ(a.stats().n_evictions, 1);
  EXPECT_EQ(budget.used_bytes(), 70);
}

TEST(CacheBudgetTest, HeldEntriesAreNotEvicted) {
  CacheBudget budget(100);
  DigestCache cache(budget);
  cache.put(key(1), text("cheap"), 40, 1);
  cache.put(key(2), text("dear"), 40, 1000);
  std::optional<CacheHold> hold = cache.hold(key(1)), again = cache.hold(key(1));
  const CacheHold coming = cache.hold(key(3));
  cache.put(key(3), text("dearer"), 40, 2000);  // 120 > 100: the second is evicted
  EXPECT_TRUE(cache.contains(key(1)));
  EXPECT_FALSE(cache.contains(key(2)));
  cache.put(key(4), text("no room"), 40, 1e9);  // the others are held
  EXPECT_FALSE(cache.contains(key(4)));
  const int64_t version = cache.version();
  hold.reset();
  cache.put(key(4), text("no room"), 40, 1e9);
  EXPECT_FALSE(cache.contains(key(4)));
  EXPECT_EQ(cache.version(), version);
  again.reset();
  cache.put(key(4), text("room"), 40, 1);
  EXPECT_TRUE(cache.contains(key(4)));
  EXPECT_FALSE(cache.contains(key(1)));
  EXPECT_TRUE(cache.contains(key(3)));
  EXPECT_NE(cache.version(), version);
  EXPECT_LE(budget.used_bytes(), 100);
  cache.clear();  // clear() ignores holds
  EXPECT_EQ(budget.used_bytes(), 0);
}

TEST(CacheBudgetTest, EntryLargerThanTheBudgetIsNotCached) {
  CacheBudget budget(100);
  DigestCache cache(budget);
  cache.put(key(1), text("one"), 60, 1);
  cache.put(key(2), text("too much"), 101, 1e9);
  EXPECT_EQ(cache.find<std::string>(key(2)), nullptr);
  EXPECT_NE(cache.find<std::string>(key(1)), nullptr);
  CacheBudget none(0);
  DigestCache nothing(none);
  nothing.put(key(1), text("one"), 1, 1);
  EXPECT_EQ(nothing.find<std::string>(key(1)), nullptr);
}

TEST(CacheBudgetTest, ValueOutlivesEviction) {
  CacheBudget budget(10);
  DigestCache cache(budget);
  cache.put(key(1), text("one"), 10, 1);
  const auto held = cache.find<std::string>(key(1));
  cache.put(key(2), text("two"), 10, 1);
  EXPECT_EQ(cache.find<std::string>(key(1)), nullptr);
  EXPECT_EQ(*held, "one");
}

TEST(CacheBudgetTest, DroppedEntriesAreRemovedEvenIfHeld) {
  CacheBudget budget(10);
  DigestCache cache(budget);
  cache.put(key(1), text("one"), 4, 1);
  cache.put(key(2), text("two"), 5, 1);
  cache.find<std::string>(key(2));
  std::vector<std::string> seen;
  cache.for_each([&](const Sha256Digest& k, int64_t bytes, int64_t n_uses) {
    seen.push_back(std::to_string(k[0]) + ": " + std::to_string(bytes) + " bytes, used " + std::to_string(n_uses));
  });
  EXPECT_EQ(seen, (std::vector<std::string>{"1: 4 bytes, used 1", "2: 5 bytes, used 2"}));
  const CacheHold hold = cache.hold(key(2));
  cache.drop(key(2));
  cache.drop(key(3));
  EXPECT_FALSE(cache.contains(key(2)));
  EXPECT_EQ(budget.used_bytes(), 4);
  cache.put(key(2), text("again"), 6, 1);
  cache.put(key(3), text("three"), 10, 1);  // does not fit beside the held entry
  EXPECT_TRUE(cache.contains(key(2)));
}

// One-off entries do not evict one that is requested repeatedly; one that is no longer requested is evicted at last.
TEST(CacheBudgetTest, SingleUseEntriesDoNotFloodTheCache) {
  CacheBudget budget(10);
  DigestCache cache(budget);
  cache.put(key(0), text("often"), 1, 1);
  std::mt19937 random(3);
  for (int i = 0; i < 200; ++i) {
    cache.put(key(static_cast<uint8_t>(1 + random() % 200)), text("once"), 1, 1);
    EXPECT_NE(cache.find<std::string>(key(0)), nullptr) << i;
    EXPECT_LE(budget.used_bytes(), 10);
  }
  for (int i = 0; i < 5000; ++i) {
    cache.put(key(static_cast<uint8_t>(1 + i % 200)), text("later"), 1, 1);
    cache.find<std::string>(key(static_cast<uint8_t>(1 + i % 200)));
  }
  EXPECT_EQ(cache.find<std::string>(key(0)), nullptr);
}

}  // namespace
}  // namespace vlcache
