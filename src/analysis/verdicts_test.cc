// Verdicts in words: which line of a table is marked, and the sentences of every case.
#include "analysis/verdicts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "analysis/html.h"

namespace vlcache {
namespace {

using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

EvalLine full(int32_t n) {
  return {.kv = "full", .given = "full", .n = n, .score = 1, .interval = {1, 1}, .share_interval = {1, 1}};
}

struct Counts {
  int32_t n = 40, n_lost = 0, n_gained = 0;
  double low = 1;  // of the share of the full cache's score
};

EvalLine line(const char* kv, const char* budget, const Counts& c, double kv_share = 0.2) {
  const double score = 1 - static_cast<double>(c.n_lost) / c.n;
  return {.kv = kv,
          .budget = budget,
          .given = kv,
          .n = c.n,
          .n_lost = c.n_lost,
          .n_gained = c.n_gained,
          .score = score,
          .interval = {c.low, 1},
          .share = score,
          .share_interval = {c.low, 1},
          .kv_share = kv_share};
}

EvalTable table(std::vector<EvalLine> lines, int32_t n = 40) {
  EvalTable t;
  t.n_turns = n;
  t.lines = {full(n)};
  for (EvalLine& l : lines) t.lines.push_back(std::move(l));
  return t;
}

TEST(EvalVerdict, NamesTheSmallestBudgetThatReachesTheGoal) {
  const EvalTable t =
      table({line("auto", "0.2", {}), line("auto", "0.05", {}), line("h2o", "0.05", {.n_lost = 3, .low = 0.8})});
  EXPECT_EQ(best_line(t)->index, 2u);
  EXPECT_TRUE(best_line(t)->reaches);
  EXPECT_THAT(best_line_rule(t, *best_line(t)), HasSubstr("smallest budget"));
  // 0.025^(1/40) = 0.912
  EXPECT_EQ(eval_verdict(t),
            "Keep 5 %: `auto` lost nothing on your 40 questions; 40 are few: of all such questions, 91 to 100 % are "
            "answered as well as with the full cache.");
}

TEST(EvalVerdict, CountsLossesAndGainsOfLargeSets) {
  const EvalTable t = table({line("auto", "0.1", {.n = 1000, .n_lost = 2, .n_gained = 1, .low = 0.99})}, 1000);
  EXPECT_THAT(eval_verdict(t),
              StartsWith("Keep 10 %: `auto` lost 2 and gained 1 of your 1000 questions; of all such "));
}

TEST(EvalVerdict, OneQuestionProvesNothing) {
  EXPECT_EQ(
      eval_verdict(table({line("auto", "0.1", {.n = 1})}, 1)),
      "Keep 10 %: `auto` lost nothing on your one question; one is far too few: of all such questions, 2 to 100 % "
      "are answered as well as with the full cache.");
}

TEST(EvalVerdict, WithoutALineThatReachesTheGoalTheHighestScoreIsNamed) {
  const EvalTable t =
      table({line("auto", "0.4", {.n_lost = 1, .low = 0.92}), line("auto", "0.1", {.n_lost = 1, .low = 0.92}),
             line("h2o", "0.05", {.n_lost = 20, .low = 0.3})});
  EXPECT_EQ(best_line(t)->index, 2u) << "of equal scores the smaller budget";
  EXPECT_FALSE(best_line(t)->reaches);
  EXPECT_THAT(best_line_rule(t, *best_line(t)), HasSubstr("highest score"));
  EXPECT_THAT(eval_verdict(t),
              StartsWith("No policy keeps 98 % of the full cache's score for certain. The best is `auto` at "
                         "10 %: it lost 1 of your 40 questions; 40 are few: "));
  EvalTable easier = t;
  easier.goal = 0.9;
  EXPECT_TRUE(best_line(easier)->reaches);
}

TEST(EvalVerdict, TiesAreNamedTogether) {
  const EvalTable t = table({line("auto", "0.1", {}), line("h2o", "0.1", {}, 0.3), line("snapkv", "0.2", {})});
  EXPECT_EQ(best_line(t)->index, 1u) << "fewer bytes";
  EXPECT_THAT(best_line(t)->as_good, ElementsAre(2));
  EXPECT_THAT(eval_verdict(t), EndsWith(" As good: `h2o` at 10 %."));
  EXPECT_THAT(eval_verdict(table({line("auto", "0.1", {})})), Not(HasSubstr("As good")));
}

TEST(EvalVerdict, BudgetsThatAreNoSharesAndPoliciesWithoutOne) {
  EXPECT_THAT(eval_verdict(table({line("razor", "", {}, 0.43)})),
              StartsWith("Use `razor`, with 43 % of the bytes: it lost nothing"));
  EXPECT_THAT(eval_verdict(table({line("h2o", "10%", {})})), StartsWith("Keep 10 %: `h2o` lost nothing"));
  EXPECT_THAT(eval_verdict(table({line("h2o", "error=0.05", {})})),
              StartsWith("Use `h2o` at error=0.05: it lost nothing"));
  EXPECT_THAT(eval_verdict(table({line("h2o", "256", {}, 0.3)})), StartsWith("Use `h2o` at 256: it lost nothing"));
}

TEST(EvalVerdict, LinesThatSavedNothingDoNotCount) {
  EvalLine late = line("auto", "0.05", {}, 1.007);
  late.n_ended = 40;
  EXPECT_FALSE(best_line(table({late})));
  EXPECT_EQ(eval_verdict(table({late})),
            "No policy saved anything on your 40 questions: answers ended before the policy "
            "acted; measure longer answers (--max-tokens).");
  EXPECT_EQ(best_line(table({late, line("h2o", "0.4", {.n_lost = 9, .low = 0.5})}))->index, 2u);
  EXPECT_EQ(eval_verdict(table({line("h2o", "1", {}, 1.0)})), "No policy saved anything on your 40 questions.");
  EvalLine some = line("auto", "0.1", {}, 0.6);
  some.n_ended = 10;
  EXPECT_THAT(eval_verdict(table({some})), EndsWith(" 10 of its answers ended before it acted."));
}

TEST(EvalVerdict, SaysWhyThereIsNone) {
  EXPECT_EQ(eval_verdict({}), "");
  EXPECT_THAT(eval_verdict(table({})), StartsWith("Only the full cache was measured"));
  EvalLine failed = line("h2o", "0.1", {});
  failed.n = 0;
  failed.error = "no room";
  EXPECT_EQ(eval_verdict(table({failed})), "No policy gave an answer on your 40 questions: no room.");
  EvalTable wrong = table({line("h2o", "0.1", {})});
  wrong.lines[0].score = 0;
  EXPECT_THAT(eval_verdict(wrong), StartsWith("The full cache is never right on your 40 questions"));
  wrong.lines[0].n = 0;
  wrong.lines[0].error = "no image";
  EXPECT_THAT(eval_verdict(wrong), EndsWith("gave no answer on your 40 questions: no image."));
}

TEST(InspectVerdict, SaysWhatStayedAndWhatItSaved) {
  // Two layers of two heads over 10 tokens, of which 2 to 5 are the image's.
  Inspection in{.policy = "h2o",
                .n_prompt = 10,
                .full_kv_bytes = 4 << 20,
                .kv_bytes = 1 << 20,
                .full_answer = "a",
                .answer = "a"};
  in.layers.resize(2);
  in.layers[0].kept = {{0, 2, 9}, {0, 9}};
  in.layers[1].kept = {{9}, {3, 9}};
  in.images.push_back({.begin = 2, .end = 6, .rects = std::vector<std::optional<PixelRect>>(4)});
  EXPECT_EQ(
      inspect_verdict(in),
      "20 % of the KV stayed, 2 of 10 tokens a head on average (12.5 % of the image); the answer is the same. That "
      "saves 3.0 MiB of 4.0 MiB (75 %). One question shows little: `vlcache eval` measures many.");
  in.answer = "b";
  in.kv_bytes = in.full_kv_bytes;
  in.images.clear();
  EXPECT_EQ(
      inspect_verdict(in),
      "20 % of the KV stayed, 2 of 10 tokens a head on average; the answer is another one. That saves nothing. One "
      "question shows little: `vlcache eval` measures many.");
}

TEST(HeadsVerdict, CountsTheHeadsThatLookBack) {
  HeadScores scores{.echo = {{0.02f, 0.9f}, {0.1f, 0}}, .induction = {}};
  EXPECT_THAT(heads_verdict(scores),
              StartsWith("2 of 4 kv heads look back: they give at least 10 % of the attention, at most 90 %"));
  scores.echo[0][1] = 0;
  EXPECT_THAT(heads_verdict(scores), StartsWith("1 of 4 kv heads looks back: it gives"));
  scores.echo[1][0] = 0;
  EXPECT_THAT(heads_verdict(scores), StartsWith("None of 4 kv heads looks back: none gives more than 2.0 %"));
}

TEST(VerdictBox, EscapesAndBreaksLines) {
  EXPECT_EQ(verdict_box("a < `b`\nc\n"), "<p class=\"verdict\"><strong>a &lt; <code>b</code><br>\nc</strong></p>\n");
}

}  // namespace
}  // namespace vlcache
