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

struct Counts {
  int32_t n_lost = 0, n_gained = 0;
};

EvalLine line(const char* kv, const char* budget, const Counts& c = {}, double kv_share = 0.2) {
  return {.kv = kv,
          .budget = budget,
          .given = kv,
          .error = {},
          .n_lost = c.n_lost,
          .n_gained = c.n_gained,
          .verdict = {},
          .kv_share = kv_share,
          .by_kind = {}};
}

EvalTable table(std::vector<EvalLine> lines, int32_t n = 200, double goal = 0.98) {
  EvalTable t;
  t.n_turns = t.n_right = n;
  t.goal = goal;
  t.lines = {line("full", "", {}, 1)};
  for (EvalLine& l : lines) t.lines.push_back(std::move(l));
  for (EvalLine& l : t.lines) {
    l.n = n;
    judge_line(l, t);
  }
  return t;
}

TEST(EvalVerdict, NamesTheSmallestBudgetThatReachesTheGoal) {
  const EvalTable t = table({line("auto", "0.2"), line("auto", "0.05"), line("h2o", "0.02", {.n_lost = 6})});
  EXPECT_EQ(best_line(t)->index, 2u);
  EXPECT_TRUE(best_line(t)->reaches);
  EXPECT_THAT(best_line_rule(t, *best_line(t)), HasSubstr("smallest budget"));
  // 0.05^(1/200) = 0.9851
  EXPECT_EQ(
      eval_verdict(t),
      "Keep 5 %: `auto` lost nothing on your 200 questions; at least 98.5 % of the full cache's right answers are "
      "kept (95 % sure).");
  EXPECT_EQ(verdict_cell(t.lines[1]), "yes");
  EXPECT_EQ(verdict_cell(t.lines[3]), "no: loses too much");
  EXPECT_EQ(verdict_cell(t.lines[0]), "");
}

TEST(EvalVerdict, CountsLossesAndGainsOfLargeSets) {
  const EvalTable t = table({line("auto", "0.1", {.n_lost = 2, .n_gained = 1})}, 1000);
  EXPECT_EQ(eval_verdict(t),
            "Keep 10 %: `auto` lost 2 and gained 1 of your 1000 questions; at least 99.4 % of the full cache's right "
            "answers are kept on balance (95 % sure).");
}

// A few perfect questions show nothing, whatever the goal; the number that the verdict names suffices, one less does
// not.
TEST(EvalVerdict, FewQuestionsAreNeverEnough) {
  struct Row {
    double goal;
    int32_t n_needed;
  };
  for (const Row& r : {Row{0.9, 29}, Row{0.95, 59}, Row{0.98, 149}, Row{0.99, 299}}) {
    for (const int32_t n : {1, 10, r.n_needed - 1}) {
      const EvalTable t = table({line("auto", "0.1")}, n, r.goal);
      const std::string more = std::to_string(r.n_needed - n);
      EXPECT_FALSE(best_line(t)->reaches) << n;
      EXPECT_THAT(eval_verdict(t), StartsWith("Not enough questions: about " + more + " more are needed")) << n;
      EXPECT_EQ(verdict_cell(t.lines[1]), "not enough: about " + more + " more");
      EXPECT_THAT(best_line_rule(t, *best_line(t)), StartsWith("No row is marked"));
    }
    EXPECT_THAT(eval_verdict(table({line("auto", "0.1")}, r.n_needed, r.goal)), StartsWith("Keep 10 %: ")) << r.goal;
  }
  EXPECT_EQ(eval_verdict(table({line("auto", "0.2"), line("auto", "0.1")}, 10)),
            "Not enough questions: about 139 more are needed to say which budget keeps 98 % of the full cache's right "
            "answers. So far, `auto` at 10 % lost nothing on your 10 questions, which shows that at least 74.1 % of "
            "the full cache's right answers are kept (95 % sure).");
}

// With losses, the number supposes as many among the questions to come; where that never suffices, no number is named.
TEST(EvalVerdict, LossesCountInWhatIsNeeded) {
  const EvalTable t = table({line("auto", "0.1", {.n_lost = 1})}, 100);
  const auto n_more = static_cast<int32_t>(t.lines[1].verdict.n_more);
  EXPECT_GT(n_more, 100);
  const int32_t n = 100 + n_more, n_lost = (n + 50) / 100;
  EXPECT_TRUE(best_line(table({line("auto", "0.1", {.n_lost = n_lost})}, n + 50))->reaches);
  EXPECT_FALSE(best_line(table({line("auto", "0.1", {.n_lost = n_lost})}, n - 50))->reaches);
  EXPECT_THAT(eval_verdict(table({line("auto", "0.1", {.n_lost = 1})}, 40)),
              StartsWith("No budget that was tried keeps 98 % of the full cache's right answers so far. The best is "
                         "`auto` at 10 %: it lost 1 of your 40 questions, so that at least "));
  EXPECT_THAT(eval_verdict(table({line("auto", "0.1", {.n_lost = 30})}, 40)),
              StartsWith("No budget that was tried keeps 98 % of the full cache's right answers. The best is "));
  EXPECT_EQ(verdict_cell(table({line("auto", "0.1", {.n_lost = 30})}, 40).lines[1]), "no: loses too much");
  EXPECT_EQ(verdict_cell(table({line("auto", "0.1", {.n_lost = 1})}, 40).lines[1]), "loses too much so far");
}

TEST(EvalVerdict, WithoutALineThatReachesTheGoalTheNearestIsNamed) {
  const EvalTable t = table({line("auto", "0.4"), line("auto", "0.1"), line("h2o", "0.05", {.n_lost = 20})}, 40);
  EXPECT_EQ(best_line(t)->index, 2u) << "of equal ones the smaller budget";
  EXPECT_FALSE(best_line(t)->reaches);
  EXPECT_TRUE(best_line(table({line("auto", "0.4")}, 40, 0.92))->reaches);
  const EvalTable worse = table({line("auto", "0.1", {.n_lost = 9}), line("h2o", "0.2", {.n_lost = 5})}, 40);
  EXPECT_EQ(best_line(worse)->index, 2u) << "the one that loses less";
}

TEST(EvalVerdict, SaysHowManyAnswersWereRight) {
  EvalTable t = table({line("auto", "0.1")}, 200);
  t.n_right = 150;
  judge_line(t.lines[1], t);
  EXPECT_THAT(eval_verdict(t),
              StartsWith("Keep 10 %: `auto` lost nothing on your 200 questions (the full cache answers "
                         "150 right); at least 98 % "));
  t.n_right = 148;
  judge_line(t.lines[1], t);
  EXPECT_FALSE(best_line(t)->reaches) << "wrong either way shows nothing";
}

TEST(EvalVerdict, TiesAreNamedTogether) {
  const EvalTable t = table({line("auto", "0.1"), line("h2o", "0.1", {}, 0.3), line("snapkv", "0.2")});
  EXPECT_EQ(best_line(t)->index, 1u) << "fewer bytes";
  EXPECT_THAT(best_line(t)->as_good, ElementsAre(2));
  EXPECT_THAT(eval_verdict(t), EndsWith(" As good: `h2o` at 10 %."));
  EXPECT_THAT(eval_verdict(table({line("auto", "0.1")})), Not(HasSubstr("As good")));
}

TEST(EvalVerdict, BudgetsThatAreNoSharesAndPoliciesWithoutOne) {
  EXPECT_THAT(eval_verdict(table({line("razor", "", {}, 0.43)})),
              StartsWith("Use `razor`, with 43 % of the bytes: it lost nothing"));
  EXPECT_THAT(eval_verdict(table({line("h2o", "10%")})), StartsWith("Keep 10 %: `h2o` lost nothing"));
  EXPECT_THAT(eval_verdict(table({line("h2o", "error=0.05")})), StartsWith("Use `h2o` at error=0.05: it lost nothing"));
  EXPECT_THAT(eval_verdict(table({line("h2o", "256", {}, 0.3)})), StartsWith("Use `h2o` at 256: it lost nothing"));
}

TEST(EvalVerdict, LinesThatSavedNothingDoNotCount) {
  EvalLine late = line("auto", "0.05", {}, 1.007);
  late.n_ended = 200;
  EXPECT_FALSE(best_line(table({late})));
  EXPECT_EQ(eval_verdict(table({late})),
            "No policy saved anything on your 200 questions: answers ended before the policy "
            "acted; measure longer answers (--max-tokens).");
  EXPECT_EQ(best_line(table({late, line("h2o", "0.4", {.n_lost = 9})}))->index, 2u);
  EXPECT_EQ(eval_verdict(table({line("h2o", "1", {}, 1.0)})), "No policy saved anything on your 200 questions.");
  EvalLine some = line("auto", "0.1", {}, 0.6);
  some.n_ended = 10;
  EXPECT_THAT(eval_verdict(table({some})), EndsWith(" 10 of its answers ended before it acted."));
}

TEST(EvalVerdict, SaysWhyThereIsNone) {
  EXPECT_EQ(eval_verdict({}), "");
  EXPECT_THAT(eval_verdict(table({})), StartsWith("Only the full cache was measured"));
  EvalTable failed = table({line("h2o", "0.1")}, 40);
  failed.lines[1].n = 0;
  failed.lines[1].error = "no room";
  EXPECT_EQ(eval_verdict(failed), "No policy gave an answer on your 40 questions: no room.");
  EvalTable wrong = table({line("h2o", "0.1")}, 40);
  wrong.n_right = 0;
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
      "saves 3.0 MiB of 4.0 MiB (75 %): memory is held in pages of 64 tokens. One question shows little: `vlcache "
      "eval` measures many.");
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
