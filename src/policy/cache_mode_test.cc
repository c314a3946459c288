// Parsing of modes, and the streaming rule against a hand-computed table.
#include "policy/cache_mode.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace vlcache {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(CacheMode, ParsesNamesAndParameters) {
  EXPECT_TRUE(parse_cache_mode("none").recompute);
  EXPECT_EQ(parse_cache_mode("full").rule, nullptr);
  EXPECT_EQ(parse_cache_mode("static").capacity, -1);
  EXPECT_EQ(parse_cache_mode("static:capacity=128").capacity, 128);
  const CacheMode streaming = parse_cache_mode("streaming:window=16,sinks=2");
  EXPECT_EQ(streaming.n_sinks, 2);
  EXPECT_EQ(streaming.window, 16);
}

std::string error_of(std::string_view text) {
  try {
    parse_cache_mode(text);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(CacheMode, RejectsWhatItDoesNotKnow) {
  EXPECT_THAT(error_of("ful"), HasSubstr("there are full, none, static, streaming"));
  EXPECT_THAT(error_of("full:window=3"), HasSubstr("unknown parameter 'window'; it has none"));
  EXPECT_THAT(error_of("streaming:windows=3"), HasSubstr("it has sinks, window"));
  EXPECT_THAT(error_of("streaming:window=0"), HasSubstr("expected an integer from 1"));
  EXPECT_THAT(error_of("streaming:window=9x"), HasSubstr("found '9x'"));
  EXPECT_THAT(error_of("streaming:window"), HasSubstr("expected name:key=value"));
  EXPECT_THAT(error_of("streaming:window=3,window=4"), HasSubstr("given twice"));
}

TEST(StreamingRule, KeepsSinksAndWindowPerHead) {
  const CacheMode mode = parse_cache_mode("streaming:sinks=2,window=3");
  KeepPlan plan;
  const std::vector<int32_t> within{5, 4, 1, 0};
  EXPECT_FALSE(mode.rule->on_step({.n_layers = 2, .n_kv_heads = 2, .n_slots = within}, plan));
  const std::vector<int32_t> slots{9, 5, 1, 6};
  ASSERT_TRUE(mode.rule->on_step({.n_layers = 2, .n_kv_heads = 2, .n_slots = slots}, plan));
  EXPECT_THAT(plan.layers[0][0].keep, ElementsAre(0, 1, 6, 7, 8));
  EXPECT_THAT(plan.layers[0][1].keep, ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(plan.layers[1][0].keep, ElementsAre(0));
  EXPECT_THAT(plan.layers[1][1].keep, ElementsAre(0, 1, 3, 4, 5));
}

TEST(StreamingRule, KeepsEverythingAtTheLargestParameters) {
  const CacheMode mode = parse_cache_mode("streaming:sinks=2147483647,window=2147483647");
  KeepPlan plan;
  const std::vector<int32_t> slots{9, 5};
  EXPECT_FALSE(mode.rule->on_step({.n_layers = 1, .n_kv_heads = 2, .n_slots = slots}, plan));
}

}  // namespace
}  // namespace vlcache
