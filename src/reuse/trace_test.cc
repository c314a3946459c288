// Traces whose hits can be counted by hand.
#include "reuse/trace.h"

#include <gtest/gtest.h>

namespace vlcache {
namespace {

Trace of(const std::vector<std::vector<Element>>& requests) {
  Trace trace;
  for (const auto& blocks : requests) trace.requests.push_back({0, std::ssize(blocks), blocks});
  return trace;
}

TEST(TraceTest, InvalidLinesAreReportedAndSkipped) {
  const Trace trace = parse_trace(
      "{\"timestamp\": 5, \"input_length\": 9, \"hash_ids\": [1, 2, 3]}\n\n{\"input_length\": 9}\nnonsense\n"
      "{\"input_length\": 13, \"hash_ids\": [1, 2, 3]}\n{\"input_length\": 4, \"hash_ids\": [\"1\"]}\n"
      "{\"input_length\": 8, \"hash_ids\": [1, 4]}",
      "t.jsonl", 4);
  ASSERT_EQ(trace.requests.size(), 2u);
  EXPECT_EQ(trace.requests[0].timestamp, 5);
  EXPECT_EQ(trace.requests[1].blocks, (std::vector<Element>{1, 4}));
  ASSERT_EQ(trace.problems.size(), 4u);
  EXPECT_NE(trace.problems[0].find("t.jsonl: line 3"), std::string::npos) << trace.problems[0];
  EXPECT_NE(trace.problems[2].find("13 tokens are not 3 blocks of 4"), std::string::npos) << trace.problems[2];
}

TEST(TraceTest, HitsAreLongestPrefixes) {
  const Trace trace = of({{1, 2, 3}, {1, 2, 4}, {2, 3}, {1, 2, 3, 5}});
  LruClock lru;
  const ReplayResult result = replay(trace, lru, 0);
  EXPECT_EQ(result.n_blocks, 12);
  EXPECT_EQ(result.n_hits, 0 + 2 + 0 + 3);
}

TEST(TraceTest, LruAndGdsfDiffer) {
  // Room for two. 1 is requested often, the others once: LRU evicts 1 after 2 and 3, GDSF does not.
  const Trace trace = of({{1}, {1}, {1}, {2}, {3}, {1}});
  LruClock lru;
  GdsfClock gdsf;
  EXPECT_EQ(replay(trace, lru, 2).n_hits, 2);
  EXPECT_EQ(replay(trace, gdsf, 2).n_hits, 3);
}

}  // namespace
}  // namespace vlcache
