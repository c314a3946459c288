// Parsing of budgets, rounding, and dealing out.
#include "policy/budget.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "base/byte_size.h"

namespace vlcache {
namespace {

using testing::ElementsAre;

TEST(KvBudget, IsParsedByItsForm) {
  const auto is = [](std::string_view text, KvBudget::Kind kind, double value) {
    const KvBudget budget = KvBudget::parse(text);
    EXPECT_EQ(budget.kind, kind) << text;
    EXPECT_DOUBLE_EQ(budget.value, value) << text;
  };
  is("0.1", KvBudget::Kind::kRatio, 0.1);
  is("1", KvBudget::Kind::kRatio, 1);
  is("20%", KvBudget::Kind::kRatio, 0.2);
  is("100%", KvBudget::Kind::kRatio, 1);
  is("200", KvBudget::Kind::kSlots, 200);
  is("512MiB", KvBudget::Kind::kBytes, 512.0 * 1024 * 1024);
  is("error=0.05", KvBudget::Kind::kError, 0.05);
  is("threshold=-1.5", KvBudget::Kind::kThreshold, -1.5);
}

TEST(ParseBytes, AcceptsUnits) {
  EXPECT_EQ(parse_bytes("512MiB"), 512 << 20);
  EXPECT_EQ(parse_bytes("1.5 gib"), 3LL << 29);
  EXPECT_EQ(parse_bytes("2GB"), 2'000'000'000);
  EXPECT_EQ(parse_bytes("64k"), 64 << 10);
  EXPECT_EQ(parse_bytes("7B"), 7);
  EXPECT_EQ(parse_bytes("2", int64_t{1} << 30), int64_t{2} << 30);
  for (const char* bad : {"", "MiB", "-1MiB", "2", "1e30GiB", "3 XB", "3 iB", "3Bi", "nan", "inf", "1MBB"}) {
    EXPECT_EQ(parse_bytes(bad), std::nullopt) << bad;
  }
}

// kvpress: int(n (1 - r)) of r = 0.9; its PyramidKV and KVCache-Factory round halves to even.
TEST(SlotsOf, RoundsLikeTheReferenceImplementations) {
  EXPECT_EQ(slots_of(0.1, 100), 10);
  EXPECT_EQ(slots_of(0.1, 100, Rounding::kKvpress), 9);
  EXPECT_EQ(slots_of(0.2, 10, Rounding::kKvpress), 1);
  EXPECT_EQ(slots_of(0.5, 5), 3);
  EXPECT_EQ(slots_of(0.5, 5, Rounding::kHalfEven), 2);
  EXPECT_EQ(slots_of(0.5, 5, Rounding::kDown), 2);
  EXPECT_EQ(slots_of(0.001, 5), 1);
}

std::vector<int32_t> deal_all(std::vector<double> shares, int32_t least, int32_t most, int64_t total) {
  return deal(shares, std::vector<int32_t>(shares.size(), least), std::vector<int32_t>(shares.size(), most), total);
}

TEST(SmallBudget, IsReadBack) {
  EXPECT_EQ(small_budget_note("2", 279),
            "2: 2 slots per layer and kv head of 279; expect wrong answers below 16; for two percent write 2%");
  EXPECT_EQ(small_budget_note("15", 0),
            "15: 15 slots per layer and kv head; expect wrong answers below 16; for fifteen percent write 15%");
  EXPECT_EQ(small_budget_note("0.9%", 1000),
            "0.9%: 0.9 % of the prompt, 9 slots per layer and kv head of 1000; expect wrong answers below 1 %");
  EXPECT_EQ(small_budget_note("0.002", 0), "0.002: 0.2 % of the prompt; expect wrong answers below 1 %");
  for (const char* text : {"16", "1", "0.01", "1%", "2%", "100%", "3B", "1KiB", "error=0.001", "threshold=0.5"}) {
    EXPECT_EQ(small_budget_note(text, 279), "") << text;
  }
  for (const char* text : {"0", "-2", "2.5", "two", "0%", "101%"}) EXPECT_THROW(small_budget_note(text, 9), Error);
}

TEST(Deal, ByShareWithLimitsAndRemainders) {
  EXPECT_THAT(deal_all({1, 1, 1}, 0, 100, 10), ElementsAre(4, 3, 3));
  EXPECT_THAT(deal_all({1, 2, 3}, 0, 100, 12), ElementsAre(2, 4, 6));
  EXPECT_THAT(deal_all({1, 2, 3}, 3, 100, 12), ElementsAre(3, 4, 5));  // 9 left for 2 : 3, rounded at .6
  EXPECT_THAT(deal_all({1, 2, 30}, 0, 10, 22),
              ElementsAre(4, 8, 10));  // slots that the last cannot use are given to the others
  EXPECT_THAT(deal_all({0, 0, 1}, 0, 4, 9), ElementsAre(3, 2, 4));
  EXPECT_THAT(deal_all({0, 0}, 1, 4, 5), ElementsAre(3, 2));
  EXPECT_THAT(deal_all({1, 1}, 0, 4, 100), ElementsAre(4, 4));  // no more than the limits
  EXPECT_THAT(deal_all({1, 1}, 3, 4, 1), ElementsAre(3, 3));    // no less than the limits
  EXPECT_THAT(deal({}, {}, {}, 5), ElementsAre());
}

TEST(Deal, IsExactForAnyShares) {
  std::mt19937 random(3);
  for (int i = 0; i < 2000; ++i) {
    const size_t n = 1 + random() % 40;
    std::vector<double> shares(n);
    std::vector<int32_t> least(n), most(n);
    int64_t low = 0, high = 0;
    for (size_t u = 0; u < n; ++u) {
      shares[u] = random() % 4 == 0 ? 0.0 : std::exp(static_cast<double>(random() % 40) - 20.0);
      least[u] = static_cast<int32_t>(random() % 5);
      most[u] = least[u] + static_cast<int32_t>(random() % 100);
      low += least[u];
      high += most[u];
    }
    const int64_t total = low + static_cast<int64_t>(random() % static_cast<uint32_t>(high - low + 1));
    const std::vector<int32_t> dealt = deal(shares, least, most, total);
    ASSERT_EQ(std::accumulate(dealt.begin(), dealt.end(), int64_t{0}), total);
    for (size_t u = 0; u < n; ++u) {
      ASSERT_GE(dealt[u], least[u]);
      ASSERT_LE(dealt[u], most[u]);
    }
  }
}

}  // namespace
}  // namespace vlcache
