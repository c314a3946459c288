// Plans: solvers against exhaustive search, and invalid files.
#include "reuse/evidence/reuse_plan.h"

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

ReuseEvidence evidence(int64_t n, int64_t n_equal, double kl = 0) {
  return {.answers = {.n = n, .n_changed = n - n_equal}, .kl = kl, .floor = {}, .scores = {}};
}

TEST(ReusePlan, SurvivesARoundTrip) {
  ReusePlan plan{.model = "abc",
                 .form = "int8",
                 .weights = "int4, quantiser 2",
                 .kv_codec = KvCodec::kK8V4,
                 .shares = {0.1, 0.05, 0},
                 .one = evidence(100, 99, 0.001),
                 .several = evidence(50, 40, 0.2),
                 .looking = "asked:r=0.15",
                 .several_looking = evidence(50, 49, 0.1)};
  plan.one.floor = {{"avx2", {.n = 7, .n_changed = 0}}, {"chunks of 100", {.n = 100, .n_changed = 2}}};
  plan.several.scores = {.n = 50, .n_right = 30, .n_lost = 6, .n_gained = 4};
  const ReusePlan again = parse_reuse_plan(reuse_plan_json(plan), "p");
  EXPECT_EQ(again.model, "abc");
  EXPECT_EQ(again.form, "int8");
  EXPECT_EQ(again.weights, "int4, quantiser 2");
  EXPECT_EQ(again.kv_codec, KvCodec::kK8V4);
  EXPECT_EQ(again.shares, plan.shares);
  EXPECT_EQ(again.one.answers.n_changed, 1);
  ASSERT_EQ(again.one.floor.size(), 2u);
  EXPECT_EQ(again.one.floor[1].name, "chunks of 100");
  EXPECT_EQ(noise_floor(again.one).n, 107);
  EXPECT_EQ(noise_floor(again.one).n_changed, 2);
  EXPECT_FALSE(again.one.scores);
  EXPECT_DOUBLE_EQ(again.several.answers.share(), 0.2);
  ASSERT_TRUE(again.several.scores);
  EXPECT_EQ(again.several.scores->n_right, 30);
  EXPECT_EQ(again.several.scores->n_lost, 6);
  EXPECT_EQ(again.several.scores->n_gained, 4);
  EXPECT_EQ(again.looking, plan.looking);
  EXPECT_DOUBLE_EQ(again.several_looking.answers.share(), 0.02);
  EXPECT_EQ(planned_chooser(again)->plan(3, 100).n_tokens(1, 100), 5);
  EXPECT_THROW(planned_chooser(again)->plan(4, 100), Error);
}

TEST(ReusePlan, FilesOfEarlierVersionsHaveNoFloorAndNoCodec) {
  const ReusePlan plan = parse_reuse_plan(
      R"({"format": 1, "model": "m", "form": "exact", "mean": 0.5, "shares": [0.5], "one_image": {"cases": 299, "equal": 299,
          "kl": 0}, "several_images": {"cases": 10, "equal": 10, "kl": 0}})",
      "p");
  EXPECT_TRUE(plan.one.floor.empty());
  EXPECT_EQ(plan.kv_codec, std::nullopt);
  EXPECT_EQ(reuse_plan_json(plan).find("kv_codec"), std::string::npos);
  const PlanVerdict verdict = judge(plan, {});
  EXPECT_EQ(verdict.use(1), PlanVerdict::Use::kPlan);
  EXPECT_EQ(verdict.use(2), PlanVerdict::Use::kNothing);  // 10 of 10 no longer open the gate
}

TEST(ReusePlan, OneAndSeveralImagesAreJudgedApart) {
  const ReuseEvidence good = evidence(300, 300), bad = evidence(300, 280);
  using Use = PlanVerdict::Use;
  const auto uses = [](const ReuseEvidence& one, const ReuseEvidence& several, const ReuseEvidence& looking) {
    const PlanVerdict verdict = judge(ReusePlan{.model = "",
                                                .shares = {0.1},
                                                .one = one,
                                                .several = several,
                                                .looking = "asked",
                                                .several_looking = looking},
                                      GateRule{});
    return std::pair(verdict.use(1), verdict.use(3));
  };
  EXPECT_EQ(uses(good, good, bad), std::pair(Use::kPlan, Use::kPlan));
  EXPECT_EQ(uses(good, bad, good), std::pair(Use::kPlan, Use::kLooking));
  EXPECT_EQ(uses(good, bad, bad), std::pair(Use::kPlan, Use::kNothing));
  EXPECT_EQ(uses(bad, good, bad), std::pair(Use::kNothing, Use::kPlan));
}

TEST(ReusePlan, TheVerdictIsInWords) {
  ReusePlan plan{.model = "",
                 .shares = {0.1},
                 .one = evidence(629, 627),
                 .several = evidence(300, 280),
                 .looking = "asked:r=0.15",
                 .several_looking = evidence(100, 100)};
  const std::string words = verdict_words(plan, {});
  EXPECT_EQ(
      words,
      "Reuse: on for one image in a prompt. 627 of 629 test answers stayed the same; at most 1 % change (95 %).\n"
      "Reuse: off for several images in a prompt. 280 of 300 test answers stayed the same; at most 9.6 % change "
      "(95 %), 1 % may. Compute a larger share of the image (--target), or accept it (--reuse-margin 0.096).\n"
      "  With asked:r=0.15: 100 of 100 test answers stayed the same; at most 3 % change (95 %), 1 % may. Not enough "
      "questions: about 199 more are needed.\n");
  plan.several_looking = evidence(300, 300);
  EXPECT_NE(verdict_words(plan, {}).find("Reuse: on for several images in a prompt (asked:r=0.15). 300 of 300"),
            words.npos);
  plan.several = plan.several_looking = {};
  EXPECT_NE(verdict_words(plan, {}).find("\nReuse: off for several images in a prompt, not measured.\n"), words.npos);
}

TEST(ReusePlan, InvalidPlansAreRejected) {
  ReusePlan plan{.model = "m",
                 .shares = {0.5, 0.25},
                 .one = evidence(4, 3),
                 .several = {},
                 .looking = "asked",
                 .several_looking = evidence(8, 7, 1)};
  plan.kv_codec = KvCodec::kInt8;
  plan.one.floor = {{"avx2", {.n = 6, .n_changed = 5}}};
  plan.one.scores = {.n = 4, .n_right = 3, .n_lost = 2, .n_gained = 1};
  const std::string good = reuse_plan_json(plan);
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const size_t at = text.find(from);
    EXPECT_NE(at, text.npos) << from;
    return text.replace(at, from.size(), to);
  };
  EXPECT_NO_THROW(parse_reuse_plan(good, "p"));
  EXPECT_EQ(parse_reuse_plan(with("\"form\": \"exact\",", ""), "p").form, "exact");
  for (const std::string& text : {std::string(),
                                  std::string("[]"),
                                  with("\"format\": 1", "\"format\": 2"),
                                  with("0.25", "0.75"),
                                  with("0.25", "-1"),
                                  with("0.25", "\"x\""),
                                  with("\"equal\": 3", "\"equal\": 5"),
                                  with("\"cases\": 4", "\"cases\": -4"),
                                  with("\"model\"", "\"modle\""),
                                  with("several_images", "several"),
                                  with("\"exact\"", "8"),
                                  with("\"int8\"", "\"int7\""),
                                  with("\"int8\"", "8"),
                                  with("asked", "askd"),
                                  with("several_images_looking", "looked"),
                                  with("\"changed\": 5", "\"changed\": 7"),
                                  with("\"cases\": 6", "\"cases\": 4"),
                                  with("\"lost\": 2", "\"lost\": 5"),
                                  with("\"gained\": 1", "\"gained\": 3"),
                                  with("\"gained\": 1", "\"won\": 1"),
                                  with("\"right\": 3", "\"right\": 5"),
                                  with("\"changed\": 5", "\"changed\": \"5\"")}) {
    EXPECT_THROW(parse_reuse_plan(text, "p"), Error) << text;
  }
}

}  // namespace
}  // namespace vlcache
