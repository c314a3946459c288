// What StepBudget learns from steps of invented times.
#include "engine/scheduler/step_budget.h"

#include <gtest/gtest.h>

#include <cmath>

namespace vlcache {
namespace {

TEST(StepBudget, DecodesOnceAloneToMeasureItsTime) {
  StepBudget budget(0);
  budget.took(false, 1000, 10);
  EXPECT_TRUE(budget.decodes_alone());
  budget.took(true, 0, 20);
  EXPECT_FALSE(budget.decodes_alone());
  EXPECT_DOUBLE_EQ(*budget.prompt_flops(1), StepBudget::kTimeForOne * 20 * 100);  // at 10 ms for 1000
}

TEST(StepBudget, WaitingPromptsIncreaseThePromptTime) {
  StepBudget budget(0);
  budget.took(true, 0, 20);
  EXPECT_DOUBLE_EQ(*budget.prompt_ms(1), 1.25 * 20);
  EXPECT_DOUBLE_EQ(*budget.prompt_ms(2), 5 * 20);
  EXPECT_DOUBLE_EQ(*budget.prompt_ms(3), 10 * 20);
  EXPECT_DOUBLE_EQ(*budget.prompt_ms(100), 10 * 20);
  StepBudget bounded(50);
  bounded.took(true, 0, 20);
  EXPECT_DOUBLE_EQ(*bounded.prompt_ms(3), 30);
}

TEST(StepBudget, OneSlowStepDoesNotChangeTheDecodeTime) {
  StepBudget budget(0);
  for (const double ms : {20.0, 21.0, 90.0}) budget.took(true, 0, ms);
  EXPECT_DOUBLE_EQ(*budget.prompt_ms(1), StepBudget::kTimeForOne * 21);
  budget.took(true, 0, 80);  // two do
  EXPECT_DOUBLE_EQ(*budget.prompt_ms(1), StepBudget::kTimeForOne * 80);
}

TEST(StepBudget, HasNoEstimateForUnmeasuredPrompts) {
  StepBudget budget(0);
  budget.took(true, 0, 20);
  EXPECT_FALSE(budget.prompt_flops(1));
}

TEST(StepBudget, KeepsStepsWithinTheTimeLimit) {
  for (const double max_ms : {0.0, 60.0}) {
    StepBudget budget(max_ms);
    // Decoding takes 30 ms, from the hundredth step on 40; 0.01 ms a FLOP, twice that in small pieces.
    const auto decode = [](int step) { return step < 100 ? 30.0 : 40.0; };
    budget.took(false, 1e5, 1e3);
    budget.took(true, 0, decode(0));
    int n_alone = 0;
    for (int step = 1; step < 400; ++step) {
      const double flops = budget.decodes_alone() ? 0 : *budget.prompt_flops(1);
      const double ms = decode(step) + 0.02 * flops;
      n_alone += flops == 0;
      const double wanted = max_ms > 0 ? max_ms : (1 + StepBudget::kTimeForOne) * decode(step);
      if (flops > 0 && ((step > 30 && step < 100) || step > 300)) {
        EXPECT_NEAR(ms, wanted, 0.1 * wanted) << step;
      }
      budget.took(true, flops, ms);
    }
    EXPECT_EQ(n_alone, 399 / (StepBudget::kAloneEvery + 1));
  }
}

// Pieces cost 15 ms whatever their size: as soon as two sizes were seen, the next one fits its time.
TEST(StepBudget, KnowsThatShortPiecesCostMore) {
  StepBudget budget(0);
  const auto cost = [](double flops) { return 15 + 0.01 * flops; };
  budget.took(true, 0, 40);
  budget.took(false, 5e4, cost(5e4));
  double flops = *budget.prompt_flops(1);
  budget.took(true, flops, 40 + cost(flops));
  for (const double decode_ms : {40.0, 60.0, 30.0}) {
    for (int i = 0; i < 3; ++i) budget.took(true, 0, decode_ms);
    flops = *budget.prompt_flops(1);
    EXPECT_NEAR(cost(flops), StepBudget::kTimeForOne * decode_ms, 0.02 * decode_ms);
    budget.took(true, flops, decode_ms + cost(flops));
  }
}

TEST(StepBudget, LeavesNoTimeWhenDecodingExceedsTheLimit) {
  StepBudget budget(10);
  budget.took(false, 1e5, 1e3);
  budget.took(true, 0, 30);
  EXPECT_EQ(budget.prompt_flops(1), 0);
  budget.took(true, 100, 29);  // cheaper than decoding alone: noise
  EXPECT_TRUE(std::isfinite(*budget.prompt_flops(1)));
}

}  // namespace
}  // namespace vlcache
