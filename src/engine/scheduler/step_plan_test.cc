// Plans as a table: what a step computes of which requests, without a model.
#include "engine/scheduler/step_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace vlcache {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using Part = StepPlan::Part;

constexpr RunningRequest kDecodes{.n_pending = 1};
constexpr RunningRequest kLoads{.state = RequestState::kLoading};
constexpr RunningRequest kStalls{.state = RequestState::kLoading, .may_stall = true};
constexpr RunningRequest kEncodes{.state = RequestState::kEncoding};

RunningRequest prompt_of(int32_t n, double row_flops = 1) { return {.n_pending = n, .row_flops = row_flops}; }

// Decoding alone takes 10 ms, and 100 FLOPs of prompts a millisecond more.
StepBudget known_budget() {
  StepBudget budget(0);
  budget.took(false, 1000, 10);
  for (int i = 0; i < 3; ++i) budget.took(true, 0, 10);
  return budget;
}

StepPlan planned(const std::vector<RunningRequest>& running, const StepBudget& budget = known_budget(),
                 const StepLimits& limits = {.chunk = 100, .unknown_flops = 25}) {
  StepPlan plan;
  plan_step(running, budget, limits, plan);
  return plan;
}

TEST(StepPlan, NoRequestsGiveAnEmptyPlan) {
  const StepPlan plan = planned({});
  EXPECT_THAT(plan.parts, IsEmpty());
  EXPECT_FALSE(plan.encode || plan.decodes);
}

TEST(StepPlan, DecodingRequestsGetOneRowEach) {
  const StepPlan plan = planned({kDecodes, kLoads, kDecodes});
  EXPECT_THAT(plan.parts, ElementsAre(Part{0, 1}, Part{2, 1}));
  EXPECT_TRUE(plan.decodes);
}

TEST(StepPlan, PromptsAloneShareAChunkInTheOrderOfArrival) {
  EXPECT_THAT(planned({prompt_of(500)}).parts, ElementsAre(Part{0, 100}));
  EXPECT_THAT(planned({prompt_of(30), prompt_of(50), prompt_of(500), prompt_of(7)}).parts,
              ElementsAre(Part{0, 100}, Part{1, 70}, Part{2, 20}));
}

TEST(StepPlan, BudgetLimitsAPromptBesideDecoding) {
  // 1.25 times what decoding takes: 12.5 ms, 1,250 FLOPs.
  const auto rows = [](double row_flops) {
    const StepPlan plan = planned({kDecodes, prompt_of(500, row_flops)});
    EXPECT_EQ(plan.parts.size(), 2U);
    return plan.parts.back().max_rows;
  };
  EXPECT_EQ(rows(1), 99);  // the chunk has room for so many beside the row that decodes
  EXPECT_EQ(rows(50), 25);
  EXPECT_EQ(rows(500), 8);  // fewer would read the weights for next to nothing
}

TEST(StepPlan, EveryWaitingPromptCounts) {
  const auto rows = [](std::vector<RunningRequest> more) {
    more.insert(more.begin(), {kDecodes, prompt_of(500, 100)});
    const StepPlan plan = planned(more);
    return std::ranges::find(plan.parts, size_t{1}, &Part::request)->max_rows;
  };
  const int32_t alone = rows({});
  EXPECT_EQ(alone, 12);                               // 12.5 ms
  EXPECT_EQ(rows({prompt_of(500, 100)}), 50);         // 5 times what decoding takes
  EXPECT_EQ(rows({kLoads, kDecodes}), alone);         // requests that load or decode are none
  EXPECT_EQ(rows({prompt_of(9), prompt_of(9)}), 99);  // 10 times: the chunk is the bound
}

TEST(StepPlan, DecodingRunsAloneWhenItsTimeIsUnknown) {
  const StepBudget fresh(0);
  EXPECT_TRUE(fresh.decodes_alone());
  EXPECT_THAT(planned({prompt_of(50), kDecodes}, fresh).parts, ElementsAre(Part{1, 1}));
  EXPECT_THAT(planned({prompt_of(50), prompt_of(9)}, fresh).parts, ElementsAre(Part{0, 100}, Part{1, 50}));
}

TEST(StepPlan, UntimedPromptsGetFewRows) {
  StepBudget budget(0);
  budget.took(true, 0, 10);
  EXPECT_THAT(planned({kDecodes, prompt_of(500)}, budget).parts, ElementsAre(Part{0, 1}, Part{1, 25}));
}

TEST(StepPlan, ImagesAloneAreEncodedWholeAndTheStepContinues) {
  StepPlan plan = planned({prompt_of(50), kEncodes, kEncodes});
  EXPECT_EQ(plan.encode, 1U);
  EXPECT_FALSE(plan.encode_ms || plan.decodes);
  EXPECT_THAT(plan.parts, IsEmpty());
  plan = planned({prompt_of(50), prompt_of(10), kEncodes}, known_budget(), {.chunk = 100, .encoded_now = true});
  EXPECT_FALSE(plan.encode);
  EXPECT_THAT(plan.parts, ElementsAre(Part{0, 100}, Part{1, 50}));
}

TEST(StepPlan, ImagesAndPromptsAlternateBesideDecoding) {
  const std::vector<RunningRequest> running{kDecodes, kEncodes, prompt_of(50)};
  const StepPlan image = planned(running);
  EXPECT_EQ(image.encode, 1U);
  EXPECT_DOUBLE_EQ(*image.encode_ms, 50);  // two wait: 5 times what decoding takes
  EXPECT_THAT(image.parts, ElementsAre(Part{0, 1}));
  const StepLimits after{.chunk = 100, .encoded_last_step = true};
  const StepPlan prompt = planned(running, known_budget(), after);
  EXPECT_FALSE(prompt.encode);
  EXPECT_THAT(prompt.parts, ElementsAre(Part{0, 1}, Part{2, 99}));
  EXPECT_EQ(planned({kDecodes, kEncodes}, known_budget(), after).encode, 1U);  // no prompt, so it goes on
  EXPECT_FALSE(planned(running, StepBudget(0)).encode);  // it is not known yet what decoding takes
}

TEST(StepPlan, LoadIsAwaitedOnlyWhenNothingElseCanBeComputed) {
  EXPECT_THAT(planned({kLoads, kStalls, kStalls}).parts, ElementsAre(Part{1, 100}));
  EXPECT_THAT(planned({kStalls, prompt_of(30)}).parts, ElementsAre(Part{1, 100}));
  EXPECT_THAT(planned({kStalls, kDecodes}).parts, ElementsAre(Part{1, 1}));
  EXPECT_THAT(planned({kLoads, kLoads}).parts, IsEmpty());
}

TEST(StepPlan, EveryStepIsAPromptWithoutACache) {
  EXPECT_THAT(planned({prompt_of(0), prompt_of(200)}).parts, ElementsAre(Part{0, 100}, Part{1, 100}));
}

}  // namespace
}  // namespace vlcache
