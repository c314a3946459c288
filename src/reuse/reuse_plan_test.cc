// Plans: solvers against exhaustive search, and invalid files.
#include "reuse/reuse_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>

#include "base/error.h"

namespace vlcache {
namespace {

// The loss of the best plan, by exhaustive search.
double least_loss(const ReuseSensitivity& s, double target) {
  std::vector<size_t> levels(s.loss.size(), 0);
  double best = plan_loss(s, levels);
  while (true) {
    size_t i = 0;
    while (i < levels.size() && ++levels[i] == s.levels.size()) levels[i++] = 0;
    if (i == levels.size()) return best;
    double total = 0;
    bool falls = true;
    for (size_t j = 0; j < levels.size(); ++j) {
      total += s.levels[levels[j]];
      falls = falls && (j == 0 || levels[j] <= levels[j - 1]);
    }
    if (falls && total <= target * static_cast<double>(levels.size()) + 1e-9)
      best = std::min(best, plan_loss(s, levels));
  }
}

double mean(const ReuseSensitivity& s, const std::vector<size_t>& levels) {
  double sum = 0;
  for (const size_t l : levels) sum += s.levels[l];
  return sum / static_cast<double>(levels.size());
}

// By hand: two layers, budget for two steps of 0.1. The deep layer gains 6, but takes the shallow one along, which
// gains 1: 7 for 0.2; the shallow one alone gains 1 and then 0.5.
TEST(ReusePlan, DeepLayerIncludesTheShallowOnes) {
  const ReuseSensitivity s{{0, 0.1, 0.2}, {{10, 9, 8.5}, {10, 4, 3}}};
  EXPECT_EQ(solve_greedily(s, 0.1), (std::vector<size_t>{1, 1}));
  EXPECT_EQ(solve_exactly(s, 0.1), (std::vector<size_t>{1, 1}));
  EXPECT_EQ(solve_greedily(s, 0.05), (std::vector<size_t>{1, 0}));  // no other step fits
  EXPECT_EQ(solve_exactly(s, 0), (std::vector<size_t>{0, 0}));
}

// The greedy rule takes 0.01 in both layers, 3 each; 0.1 in the first, which gains 20, does not fit any more.
TEST(ReusePlan, GreedySolutionCanBeSuboptimal) {
  const ReuseSensitivity s{{0, 0.01, 0.1}, {{100, 97, 80}, {100, 97, 60}}};
  EXPECT_EQ(solve_greedily(s, 0.05), (std::vector<size_t>{1, 1}));
  EXPECT_EQ(solve_exactly(s, 0.05), (std::vector<size_t>{2, 0}));
}

TEST(ReusePlan, NoPlanIsBetterThanTheExactOne) {
  std::mt19937 random(3);
  for (int round = 0; round < 60; ++round) {
    ReuseSensitivity s{{0, 0.01, 0.05, 0.2}, {}};
    for (int layer = 0; layer < 5; ++layer) {
      std::vector<double>& loss = s.loss.emplace_back();
      double x = 10;
      for (int level = 0; level < 4; ++level, x -= static_cast<double>(random() % 100) / 40 - 0.3) loss.push_back(x);
    }
    for (const double target : {0.0, 0.01, 0.03, 0.1, 1.0}) {
      const auto exact = solve_exactly(s, target), greedy = solve_greedily(s, target);
      EXPECT_NEAR(plan_loss(s, exact), least_loss(s, target), 1e-9);
      EXPECT_GE(plan_loss(s, greedy), plan_loss(s, exact) - 1e-9);
      for (const auto& levels : {exact, greedy}) {
        EXPECT_LE(mean(s, levels), target + 1e-9);
        EXPECT_TRUE(std::ranges::is_sorted(levels, std::greater<>()));
      }
    }
  }
}

TEST(ReusePlan, SurvivesARoundTrip) {
  const ReusePlan plan{.model = "abc",
                       .form = "int8",
                       .shares = {0.1, 0.05, 0},
                       .one = {100, 99, 0.001},
                       .several = {50, 40, 0.2},
                       .looking = "asked:r=0.15",
                       .several_looking = {50, 49, 0.1}};
  const ReusePlan again = parse_reuse_plan(reuse_plan_json(plan), "p");
  EXPECT_EQ(again.model, "abc");
  EXPECT_EQ(again.form, "int8");
  EXPECT_EQ(again.shares, plan.shares);
  EXPECT_EQ(again.one.n_equal, 99);
  EXPECT_DOUBLE_EQ(again.several.share(), 0.8);
  EXPECT_EQ(again.looking, plan.looking);
  EXPECT_DOUBLE_EQ(again.several_looking.share(), 0.98);
  EXPECT_EQ(planned_chooser(again)->plan(3, 100).n_tokens(1, 100), 5);
  EXPECT_THROW(planned_chooser(again)->plan(4, 100), Error);
}

TEST(ReusePlan, InvalidPlansAreRejected) {
  const std::string good = reuse_plan_json({.model = "m",
                                            .shares = {0.5, 0.25},
                                            .one = {4, 3, 0},
                                            .several = {},
                                            .looking = "asked",
                                            .several_looking = {8, 7, 1}});
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const size_t at = text.find(from);
    EXPECT_NE(at, text.npos) << from;
    return text.replace(at, from.size(), to);
  };
  EXPECT_NO_THROW(parse_reuse_plan(good, "p"));
  EXPECT_EQ(parse_reuse_plan(with("\"form\": \"exact\",", ""), "p").form, "exact");
  for (const std::string& text :
       {std::string(), std::string("[]"), with("\"format\": 1", "\"format\": 2"), with("0.25", "0.75"),
        with("0.25", "-1"), with("0.25", "\"x\""), with("\"equal\": 3", "\"equal\": 5"),
        with("\"cases\": 4", "\"cases\": -4"), with("\"model\"", "\"modle\""), with("several_images", "several"),
        with("\"exact\"", "8"), with("asked", "askd"), with("several_images_looking", "looked")}) {
    EXPECT_THROW(parse_reuse_plan(text, "p"), Error) << text;
  }
}

}  // namespace
}  // namespace vlcache
