// Who starts, and who is preempted, as a table.
#include "engine/scheduler/admission.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace vlcache {
namespace {

using Action = Admission::Action;

WaitingRequest waits(int64_t n_matched = 0, int64_t n_turns = 0, int32_t priority = 0) {
  return {.order = {.n_matched = n_matched, .n_turns = n_turns, .priority = priority}};
}

// The order in which the requests are considered.
std::vector<size_t> order_of(std::vector<WaitingRequest> waiting, size_t n_running, const Places& places) {
  std::vector<size_t> order;
  while (const auto next = next_waiting(waiting, n_running, places)) {
    order.push_back(*next);
    waiting[*next].passed = true;
  }
  return order;
}

TEST(Admission, ArrivalOrderWhenEveryRequestFits) {
  const std::vector<WaitingRequest> waiting{waits(), waits(50), waits(90)};
  EXPECT_EQ(order_of(waiting, 2, {.max_running = 5}), (std::vector<size_t>{0, 1, 2}));
  EXPECT_EQ(order_of(waiting, 100, {}), (std::vector<size_t>{0, 1, 2}));  // no bound
}

TEST(Admission, LongestCachedPrefixFirstWhenNotEveryRequestFits) {
  const std::vector<WaitingRequest> waiting{waits(), waits(50), waits(90)};
  // Once two have been considered, the last finds a place.
  EXPECT_EQ(order_of(waiting, 4, {.max_running = 5}), (std::vector<size_t>{2, 1, 0}));
}

TEST(Admission, HigherPrioritiesFirstEvenWhenEveryRequestFits) {
  const std::vector<WaitingRequest> waiting{waits(), waits(0, 0, 5), waits(0, 0, -5)};
  EXPECT_FALSE(all_find_places(waiting, 0, {}));
  EXPECT_EQ(order_of(waiting, 0, {}), (std::vector<size_t>{1, 0, 2}));
}

TEST(Admission, LongWaitOutranksALongCachedPrefix) {
  const std::vector<WaitingRequest> waiting{waits(0, kPatience), waits(500, 0)};
  EXPECT_EQ(order_of(waiting, 1, {.max_running = 1}), (std::vector<size_t>{0, 1}));
  const std::vector<WaitingRequest> young{waits(0, kPatience - 1), waits(500, 0)};
  EXPECT_EQ(order_of(young, 1, {.max_running = 1}), (std::vector<size_t>{1, 0}));
}

TEST(Admission, StartsWhenASlotAndPagesAreFree) {
  const std::vector<WaitingRequest> waiting{waits()};
  const auto action = [&](std::vector<int32_t> running, const Places& places) {
    return admit(waiting, 0, running, places).action;
  };
  EXPECT_EQ(action({0, 0}, {.max_running = 3}), Action::kStart);
  EXPECT_EQ(action({0, 0}, {.max_running = 2}), Action::kNone);
  EXPECT_EQ(action({0, 0}, {.full = true}), Action::kNone);
  EXPECT_EQ(action({}, {.max_running = 1, .full = true}), Action::kStart);  // alone it always may
}

TEST(Admission, SmallerRequestDoesNotOvertakeOneThatDoesNotFit) {
  WaitingRequest large = waits();
  large.fits = false;
  const std::vector<WaitingRequest> waiting{large, waits()};
  const std::vector<int32_t> running{0};
  EXPECT_EQ(admit(waiting, 0, running, {}).action, Action::kNone);
}

TEST(Admission, RequestAwaitingAnotherIsPassedOver) {
  WaitingRequest image = waits();
  image.awaits = true;
  const std::vector<WaitingRequest> waiting{image, waits()};
  const std::vector<int32_t> running{0};
  EXPECT_EQ(admit(waiting, 0, running, {}).action, Action::kPass);
  EXPECT_EQ(admit(waiting, 1, running, {}).action, Action::kStart);
}

TEST(Admission, NewestRequestOfTheLowestPriorityIsPreempted) {
  const std::vector<WaitingRequest> waiting{waits(0, 0, 3)};
  std::vector<int32_t> running{1, 0, 5, 0, 2};
  const Places places{.max_running = 5};
  Admission step = admit(waiting, 0, running, places);
  EXPECT_EQ(step.action, Action::kPreempt);
  EXPECT_EQ(step.victim, 3U);
  running = {5, 3, 3};
  EXPECT_EQ(admit(waiting, 0, running, {.max_running = 3}).action, Action::kNone);  // equals are not preempted
  EXPECT_EQ(preempted_first(running), 2U);
}

TEST(Admission, PreemptsUntilThePromptFits) {
  std::vector<WaitingRequest> waiting{waits(0, 0, 9)};
  std::vector<int32_t> running{0, 1, 2};
  waiting[0].fits = false;
  std::vector<size_t> victims;
  while (true) {
    const Admission step = admit(waiting, 0, running, {});
    if (step.action != Action::kPreempt) {
      EXPECT_EQ(step.action, Action::kStart);
      break;
    }
    victims.push_back(step.victim);
    running.erase(running.begin() + static_cast<ptrdiff_t>(step.victim));
    waiting[0].fits = running.size() == 1;
  }
  EXPECT_EQ(victims, (std::vector<size_t>{0, 0}));
}

}  // namespace
}  // namespace vlcache
