// The order of the waiting queue: a table by hand, and no request starves.
#include "engine/scheduler/request_order.h"

#include <gtest/gtest.h>

#include <deque>
#include <vector>

namespace vlcache {
namespace {

// A turn is worth the 32nd part of the longest match.
TEST(RequestOrder, MatchesTheHandComputedTable) {
  struct Case {
    std::vector<QueuedRequest> queue;
    size_t next;
  };
  const std::vector<Case> cases{
      {{{.n_matched = 0}}, 0},
      {{{.n_matched = 0}, {.n_matched = 0}}, 0},                                  // equals: the first to arrive
      {{{.n_matched = 0}, {.n_matched = 320}}, 1},                                // 0 < 32
      {{{.n_matched = 320}, {.n_matched = 320}, {.n_matched = 100}}, 0},          // 32, 32, 10
      {{{.n_matched = 0, .n_turns = 31}, {.n_matched = 320}}, 1},                 // 31 < 32
      {{{.n_matched = 0, .n_turns = 32}, {.n_matched = 320}}, 0},                 // 32 = 32
      {{{.n_matched = 300, .n_turns = 3}, {.n_matched = 320, .n_turns = 0}}, 0},  // 30 + 3 > 32
      {{{.n_matched = 300, .n_turns = 1}, {.n_matched = 320, .n_turns = 0}}, 1},  // 30 + 1 < 32
      {{{.n_matched = 0, .n_turns = 5}, {.n_matched = 0, .n_turns = 9}}, 1},      // no request hits: age
      {{{.n_matched = 0, .n_turns = 10}, {.n_matched = 1 << 20, .n_turns = 0}},
       1},                                                                        // 10 < 32, however long prompts are
      {{{.n_matched = 320, .n_turns = 90}, {.n_matched = 0, .priority = 1}}, 1},  // priority before all
      {{{.priority = -1}, {.n_matched = 9}, {.n_matched = 10}, {.priority = -2}}, 2}  // the others do not count
  };
  for (size_t i = 0; i < cases.size(); ++i) EXPECT_EQ(next_queued(cases[i].queue), cases[i].next) << i;
}

// A stream of requests that all hit more: a request without a hit is passed only by those that arrived soon after it.
TEST(RequestOrder, NoRequestStarves) {
  std::deque<QueuedRequest> queue(8, QueuedRequest{.n_matched = 5000});
  queue[3].n_matched = 0;
  int64_t n_turns = 0;
  for (bool gone = false; !gone; ++n_turns) {
    ASSERT_LE(n_turns, 8 + kPatience);
    const std::vector<QueuedRequest> now(queue.begin(), queue.end());
    const size_t next = next_queued(now);
    gone = queue[next].n_matched == 0;
    queue.erase(queue.begin() + static_cast<ptrdiff_t>(next));
    for (QueuedRequest& request : queue) ++request.n_turns;
    queue.push_back({.n_matched = 5000});
  }
  EXPECT_GT(n_turns, 8);
}

}  // namespace
}  // namespace vlcache
