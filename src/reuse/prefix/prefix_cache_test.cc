// Prefixes whose full pages have become codes, or whose layers have windows: where they can be continued, their forms,
// and their bytes.
#include "reuse/prefix/prefix_cache.h"

#include <random>

#include "reuse/prefix/coded_prefixes_testing.h"

namespace vlcache {
namespace {

using CodedPrefixes = CodedPrefixFixture;

// The third prompt that begins with the same 3,000 tokens finds the place where the first two have parted.
TEST_F(CodedPrefixes, FromTheThirdPromptOnAllThatIsSharedIsReused) {
  EXPECT_EQ(ask(key_of(4000, 3000, 2)), 0);
  const Key second = key_of(3700, 3000, 3), third = key_of(3500, 3000, 4);
  EXPECT_EQ(prefixes_->known(second).n_common, 3000);
  EXPECT_EQ(ask(second), 2048);
  EXPECT_EQ(prefixes_->known(third).n_common, 3000);
  EXPECT_EQ(ask(third), 3000);
  EXPECT_EQ(prefixes_->n_known(key_of(3500, 3000, 5)), 3000);
  EXPECT_EQ(prefixes_->n_known(key_of(2990, 2990, 5)), 2990);  // the same block of rows
  EXPECT_EQ(prefixes_->n_known(key_of(3500, 2500, 5)), 2048);
  EXPECT_EQ(ask(third), 3500);  // its end is a place
  expect_exact_bytes();
}

// A row after a cached prefix sees the same as without the cache.
TEST_F(CodedPrefixes, GiveTheFormsThatTheNextRowSees) {
  for (const int32_t n : {40, 64, 300, 2048, 2100}) {
    set_budget(int64_t{64} << 20);
    const Key key = key_of(n, n, 1);
    ask(key);
    KvCache taken = make(), computed = make();
    ASSERT_EQ(prefixes_->n_known(key), n);
    const PrefixTree::Pin pin = prefixes_->share(key, taken);
    const Key longer = key_of(n + 70, n + 70, 1);
    compute(computed, key, 0);
    compute(taken, longer, n);
    compute(computed, longer, n);
    expect_equal(taken, computed);
  }
}

// A prompt that is kept while it is computed has values; codes follow, and are paid when they come.
TEST_F(CodedPrefixes, GroupsTakeTheFormsThatTheyMiss) {
  const Key key = key_of(1024, 1024, 1);
  {
    KvCache cache = make();
    compute(cache, first(key, 512), 0);
    prefixes_->keep(first(key, 512), cache, 1);
    EXPECT_EQ(prefixes_->bytes(), 7 * value_bytes() + 2 * code_bytes());  // one of them ahead
    const int64_t version = prefixes_->version();
    compute(cache, key, 512);
    prefixes_->keep(first(key, 512), cache, 1);
    EXPECT_EQ(prefixes_->bytes(), 7 * value_bytes() + 7 * code_bytes());
    EXPECT_NE(prefixes_->version(), version);
    prefixes_->keep(key, cache, 1);
  }
  EXPECT_EQ(prefixes_->bytes(), (7 + 6) * value_bytes() + 10 * code_bytes());
  expect_exact_bytes();
  EXPECT_EQ(prefixes_->n_known(first(key, 512)), 512);  // a place still
  EXPECT_EQ(prefixes_->n_known(first(key, 700)), 512);
  EXPECT_EQ(prefixes_->n_known(key), 1024);  // its last pages can become codes
}

// Values come to a prompt whose pages are cached as codes: nothing but them is new.
TEST_F(CodedPrefixes, AShorterPromptAddsItsEnd) {
  const Key longer = key_of(1300, 1300, 1), shorter = key_of(700, 700, 1);
  ask(longer);
  const int64_t before = prefixes_->bytes();
  EXPECT_EQ(prefixes_->known(shorter).n_common, 700);
  EXPECT_EQ(ask(shorter), 64);
  // Pages 6 to 9 as values, and a page of 60 tokens beside the full one that has codes only.
  EXPECT_EQ(prefixes_->bytes() - before, 5 * value_bytes());
  EXPECT_EQ(prefixes_->n_known(shorter), 700);
  EXPECT_EQ(prefixes_->n_known(longer), 1300);
  EXPECT_EQ(prefixes_->known(key_of(1300, 690, 7)).n, 690);
  expect_exact_bytes();
  prefixes_->clear();
  EXPECT_EQ(prefixes_->bytes(), 0);
  EXPECT_EQ(pools_->used_bytes(), 0);
}

// A prefix of fewer bytes is worth more for each of them.
TEST_F(CodedPrefixes, EvictionCountsTheBytesOfTheForms) {
  const auto stored = [this] {
    set_budget(int64_t{64} << 20);
    ask(Key(3000, 1));
    return std::pair(prefixes_->least_priority(), static_cast<double>(prefixes_->bytes()));
  };
  const auto [coded, coded_bytes] = stored();
  for (KvLayerShape& layer : shape_.layers) layer.coded.reset();
  const auto [values, values_bytes] = stored();
  EXPECT_LT(coded_bytes, 0.5 * values_bytes);
  EXPECT_NEAR(coded / values, values_bytes / coded_bytes, 1e-9);
}

// Other requests may wait for these pages: all of them come, except where codes are made ahead of the last pages.
TEST_F(CodedPrefixes, WhatFitsIsKept) {
  for (const int32_t n : {300, 1300, 4500}) {
    for (const int64_t n_groups : {0, 3, 16, 100}) {
      set_budget(n_groups * value_bytes() + 100);
      const Key key(static_cast<size_t>(n), 1);
      KvCache cache = make();
      keep_places(cache, key);
      const int32_t n_fitting = prefixes_->n_fitting(cache, n);
      ask(key);
      const auto n_kept = prefixes_->known(key).n_common / kPageSlots;
      EXPECT_LE(n_kept, n_fitting);
      EXPECT_GE(n_kept, n_fitting - 1);
      if (n == 4500 && n_groups == 16) {
        EXPECT_GT(n_kept, 2 * n_groups);
      }
    }
  }
}

// Random prompts under a budget that holds a few of them, and under none.
TEST_F(CodedPrefixes, TheBudgetIsNeverExceeded) {
  for (const int64_t n_groups : {0, 3, 16}) {
    set_budget(n_groups * value_bytes() + 100);
    std::mt19937 random(n_groups);
    for (int i = 0; i < 8; ++i) {
      const auto n = static_cast<int32_t>(1 + random() % 1500);
      ask(key_of(n, std::min(n, static_cast<int32_t>(random() % 1500)), static_cast<Element>(2 + random() % 3)));
      ASSERT_LE(prefixes_->bytes(), n_groups * value_bytes() + 100);
      expect_exact_bytes();
    }
    EXPECT_EQ(prefixes_->bytes() > 0, n_groups > 0);
  }
}

// ---- layers with windows ------------------------------------------------------------------------------------------

class WindowedPrefixes : public CodedPrefixFixture, public testing::WithParamInterface<WindowedShape> {
 protected:
  WindowedPrefixes() {
    set_windows(shape_, GetParam());
    set_budget(int64_t{64} << 20);
  }
};

TEST_P(WindowedPrefixes, AreContinuedAtPlaces) {
  const int32_t regular = regular_place(GetParam());
  EXPECT_EQ(ask(key_of(4000, 2600, 2)), 0);
  const Key second = key_of(3700, 2600, 3), third = key_of(3500, 2600, 4);
  EXPECT_EQ(prefixes_->known(second).n_common, 2600);
  EXPECT_EQ(ask(second), regular);
  EXPECT_EQ(ask(third), 2600);
  EXPECT_EQ(prefixes_->n_known(key_of(3500, 2600, 5)), 2600);
  EXPECT_EQ(prefixes_->n_known(key_of(2590, 2590, 5)), 2590);  // in the pages before the place's window
  EXPECT_EQ(prefixes_->n_known(key_of(3500, 2200, 5)), regular);
  EXPECT_EQ(prefixes_->n_known(third), 3500);
  expect_exact_bytes();
  prefixes_->clear();
  EXPECT_EQ(pools_->used_bytes(), 0);
}

TEST_P(WindowedPrefixes, GiveThePagesThatTheNextRowSees) {
  for (const int32_t n : {40, 300, 900, 2048, 2100}) {
    set_budget(int64_t{64} << 20);
    const Key key = key_of(n, n, 1), longer = key_of(n + 70, n + 70, 1);
    ask(key);
    KvCache taken = make(), computed = make();
    ASSERT_EQ(prefixes_->n_known(key), n);
    const PrefixTree::Pin pin = prefixes_->share(key, taken);
    EXPECT_EQ(taken.holds(kLayers - 1, 0, 0), n < 600) << n;
    compute(computed, key, 0);
    compute(taken, longer, n);
    compute(computed, longer, n);
    expect_equal(taken, computed);
  }
}

// Windows of a place come to a prompt whose other pages are cached.
TEST_P(WindowedPrefixes, AShorterPromptAddsItsWindow) {
  ask(key_of(1500, 1500, 1));
  const int64_t before = prefixes_->bytes();
  const Key shorter = key_of(700, 700, 1);
  EXPECT_EQ(prefixes_->known(shorter).n_common, 700);
  ask(shorter);
  EXPECT_GT(prefixes_->bytes(), before);
  EXPECT_EQ(prefixes_->n_known(shorter), 700);
  EXPECT_EQ(prefixes_->n_known(key_of(1500, 1500, 1)), 1500);
  expect_exact_bytes();
}

TEST_P(WindowedPrefixes, TheBudgetIsNeverExceeded) {
  for (const int64_t n_groups : {0, 3, 16}) {
    set_budget(n_groups * value_bytes() + 100);
    std::mt19937 random(n_groups);
    for (int i = 0; i < 8; ++i) {
      const auto n = static_cast<int32_t>(1 + random() % 1500);
      ask(key_of(n, std::min(n, static_cast<int32_t>(random() % 1500)), static_cast<Element>(2 + random() % 3)));
      ASSERT_LE(prefixes_->bytes(), n_groups * value_bytes() + 100);
      expect_exact_bytes();
    }
    EXPECT_EQ(prefixes_->bytes() > 0, n_groups > 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, WindowedPrefixes, testing::ValuesIn(kWindowedShapes), [](const auto& info) {
  return std::string(info.param.all ? "all" : "last") + (info.param.coded ? "_int8" : "");
});

}  // namespace
}  // namespace vlcache
