// Averages computed by hand, every output format, and the round trip to disk.
#include "analysis/eval_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "analysis/eval_report.h"
#include "policy/registry.h"

namespace vlcache {
namespace {

using testing::HasSubstr;
using testing::Not;

const std::vector<EvalChoice>& choices() {
  static const std::vector<EvalChoice> all{{"full", "", parse_policy("full")},
                                           {"vl-cache", "0.2", parse_policy("vl-cache", "0.2")},
                                           {"vl-cache", "0.1", parse_policy("vl-cache", "0.1")}};
  return all;
}

// Full is right on 3 of 4, a budget of 0.2 as well, one of 0.1 on 1, and one turn has no answer.
std::vector<EvalTurnResult> results() {
  std::vector<EvalTurnResult> all;
  for (int i = 0; i < 4; ++i) {
    EvalTurnResult& r = all.emplace_back();
    r.id = std::to_string(i);
    r.kind = i < 2 ? "a<b" : "c";
    const double full = i == 3 ? 0 : 1;
    r.answers = {{.text = "x", .score = full, .same_tokens = 1, .kv_bytes = 1000},
                 {.text = "x", .score = full, .same_tokens = 1, .kv_bytes = 200},
                 {.text = "<y>", .score = i == 0 ? 1.0 : 0.0, .same_tokens = 0.5, .kv_bytes = 100}};
  }
  all[2].answers[2] = {.error = "no room"};
  all.push_back({.id = "0", .kind = "c", .turn = 1, .answers = all[0].answers});
  return all;
}

TEST(EvalTable, MatchesHandComputedValues) {
  const EvalTable table = make_table(choices(), results(), /*later_turns=*/false);
  EXPECT_EQ(table.n_turns, 4);
  ASSERT_EQ(table.lines.size(), 3u);
  EXPECT_DOUBLE_EQ(table.lines[0].score, 0.75);
  EXPECT_EQ(table.n_right, 3);
  EXPECT_DOUBLE_EQ(table.lines[1].kept, 1);
  EXPECT_NEAR(table.lines[1].kept_at_least(), std::cbrt(0.05), 1e-9);
  EXPECT_DOUBLE_EQ(table.lines[1].kv_share, 0.2);
  const EvalLine& low = table.lines[2];
  EXPECT_DOUBLE_EQ(low.score, 0.25) << "no answer is a wrong one";
  EXPECT_DOUBLE_EQ(low.kept, 1.0 / 3);
  EXPECT_EQ(low.n, 3);
  EXPECT_EQ(low.n_failed, 1);
  EXPECT_EQ(low.error, "no room");
  EXPECT_EQ(low.n_lost, 2);
  EXPECT_EQ(low.n_gained, 0);
  EXPECT_EQ(low.given, "vl-cache");
  EXPECT_DOUBLE_EQ(low.same_tokens, 0.5);
  EXPECT_DOUBLE_EQ(low.by_kind.at("a<b"), 0.5);
  EXPECT_EQ(make_table(choices(), results(), /*later_turns=*/true).n_turns, 1);
}

TEST(EvalTable, IsWrittenInEveryFormat) {
  const EvalTable table = make_table(choices(), results(), false);
  EXPECT_THAT(to_markdown(table), HasSubstr("| right answers kept | at least (95 %) | keeps 98 % |"));
  EXPECT_THAT(to_markdown(table),
              HasSubstr(" | 0.2 | 0 | 0 | 100.0 % | 36.8 % | not enough: about 195 more | 20.0 % | "));
  EXPECT_THAT(to_markdown(table), HasSubstr(" | 0.1 | 2 | 0 | 33.3 % | 7.8 % | loses too much so far | "));
  EXPECT_THAT(to_csv(table), HasSubstr("\"full\",,4,0,0,0,1,1,\"\",0,0.75,"));
  EXPECT_THAT(to_csv(table), HasSubstr(",0.2,4,0,0,0,1,0.368403,\"not enough: about 195 more\",195,0.75,"));
  const auto line = to_json(table)["lines"][2];
  EXPECT_EQ(line["failed"], 1);
  EXPECT_EQ(line["verdict"], "loses too much so far");
  EXPECT_NEAR(line["kept_at_least"].get<double>(), table.lines[2].kept_at_least(), 1e-12);
  EXPECT_THAT(safe_budgets(table), HasSubstr(": none of the budgets tried is certain to keep 98 %; the best is "
                                             "--kv-budget 0.2, which keeps at least 36.8 % with 20.0 % of the bytes"));
  EXPECT_THAT(safe_budgets(make_table(choices(), results(), false, 0.3)),
              HasSubstr(": --kv-budget 0.2, which keeps at least 36.8 %"));
}

// The same with divergences of two tokens an answer, except of the answers of turns from `n_known` on.
std::vector<EvalTurnResult> compared(int n_known) {
  std::vector<EvalTurnResult> all = results();
  for (int i = 0; i < 4; ++i) {
    std::vector<EvalAnswer>& answers = all[static_cast<size_t>(i)].answers;
    answers[2].kl = answers[2].error.empty() ? 0.25 : 0;
    if (i >= n_known) continue;
    for (size_t choice = 0; choice < 2; ++choice) answers[choice].divergences = {.kl = {0, 0}, .n_same_top = 2};
    if (answers[2].error.empty()) answers[2].divergences = {.kl = {0.5f * static_cast<float>(i), 0}, .n_same_top = 1};
  }
  return all;
}

TEST(EvalTable, FiguresOfDivergenceMatchHandComputedValues) {
  const EvalTable table = make_table(choices(), compared(4), false);
  const EvalLine &same = table.lines[1], &low = table.lines[2];
  EXPECT_EQ(same.divergence.n_tokens, 8);
  for (const double x : {same.divergence.mean, same.divergence.median, same.divergence.p999}) EXPECT_EQ(x, 0);
  EXPECT_EQ(same.divergence.same_top, 1);
  // 0, 0, 0, 0, 0.5, 1.5: the third turn has no answer
  EXPECT_EQ(low.divergence.n_tokens, 6);
  EXPECT_DOUBLE_EQ(low.divergence.mean, 2.0 / 6);
  EXPECT_EQ(low.divergence.median, 0);
  EXPECT_NEAR(low.divergence.p999, 0.5 + 0.995 * 1.0, 1e-12);
  EXPECT_DOUBLE_EQ(low.divergence.same_top, 0.5);
  EXPECT_EQ(low.n_not_compared, 0);
  EXPECT_DOUBLE_EQ(low.kl, 0.25);
}

TEST(EvalTable, FiguresOfDivergenceAreWrittenInEveryFormat) {
  const EvalTable table = make_table(choices(), compared(4), false), none = make_table(choices(), results(), false);
  const std::string text = to_markdown(table), rows = text.substr(text.find("KL divergence of"));
  EXPECT_EQ(text.substr(0, text.find("\nKL divergence of")), to_markdown(none));
  EXPECT_THAT(rows, HasSubstr("| policy | budget | tokens | KL mean | median | 99.9 % | same top |\n"));
  EXPECT_THAT(rows, HasSubstr(" | 0.2 | 8 | 0.000000 | 0.000000 | 0.000000 | 100.00 % |\n"));
  EXPECT_THAT(rows, HasSubstr(" | 0.1 | 6 | 0.333333 | 0.000000 | 1.495000 | 50.00 % |\n"));
  EXPECT_THAT(rows, Not(HasSubstr("older version")));
  EXPECT_THAT(to_csv(table), HasSubstr(",kl,kl_mean,kl_median,kl_p999,same_top,kl_tokens,kl_missing,kv_bytes,"));
  EXPECT_THAT(to_csv(table), HasSubstr(",0.25,0.333333,0,1.495,0.5,6,0,100,"));
  EXPECT_THAT(to_csv(none), HasSubstr(",0.5,0,,,,,0,0,100,"));
  const auto json = to_json(table)["lines"][2];
  EXPECT_EQ(json["kl"], 0.25);
  EXPECT_DOUBLE_EQ(json["kl_mean"].get<double>(), 2.0 / 6);
  EXPECT_EQ(json["kl_median"], 0);
  EXPECT_NEAR(json["kl_p999"].get<double>(), 1.495, 1e-12);
  EXPECT_EQ(json["same_top"], 0.5);
  EXPECT_EQ(json["kl_tokens"], 6);
  EXPECT_TRUE(to_json(none)["lines"][2]["kl_p999"].is_null());
  const std::string page = eval_page(table, choices(), compared(4), {});
  EXPECT_THAT(page, HasSubstr("<td>6</td><td>0.333333</td><td>0.000000</td><td>1.495000</td><td>50.00 %</td>"));
  EXPECT_THAT(eval_page(none, choices(), results(), {}), Not(HasSubstr("Divergence from")));
}

TEST(EvalTable, RowsOfDivergenceFitATerminalOf100Columns) {
  EvalTable table = make_table(choices(), compared(4), false);
  table.lines[2].kv = "post_vision+pointer@draft+global";
  table.lines[2].budget = "0.05";
  table.lines[2].divergence = {.n_tokens = 1000000, .mean = 12.5, .median = 10, .p999 = 99.9, .same_top = 1};
  const std::string text = to_markdown(table);
  const size_t from = text.find("| post_vision+pointer@draft+global | 0.05 | 1000000 |");
  ASSERT_NE(from, std::string::npos);
  EXPECT_LE(text.find('\n', from) - from, 100u);
}

// Records of versions that stored the mean of an answer alone.
TEST(EvalTable, AnswersWithoutDivergencesOfTokensAreCounted) {
  const EvalTable some = make_table(choices(), compared(2), false), none = make_table(choices(), compared(0), false);
  EXPECT_EQ(some.lines[0].n_not_compared, 2);
  EXPECT_EQ(some.lines[2].n_not_compared, 1);
  EXPECT_EQ(some.lines[2].divergence.n_tokens, 4);
  EXPECT_DOUBLE_EQ(some.lines[2].divergence.mean, 0.125);
  EXPECT_DOUBLE_EQ(some.lines[2].kl, 0.25);
  EXPECT_THAT(to_markdown(some), HasSubstr(" 5 of 11 answers are left out, because no token's divergence is stored "));
  EXPECT_EQ(to_json(some)["lines"][1]["kl_missing"], 2);
  EXPECT_THAT(to_markdown(none), HasSubstr(" | 0.1 | – | – | – | – | – |\n"));
  EXPECT_THAT(to_markdown(none), HasSubstr("--restart measures all again."));
  EXPECT_EQ(to_json(none)["lines"][2]["kl"], 0.25);
  EXPECT_TRUE(to_json(none)["lines"][2]["kl_mean"].is_null());
}

TEST(EvalPage, ShowsTheChartThenTheVerdicts) {
  std::vector<EvalSample> samples(4);
  for (size_t i = 0; i < 4; ++i) {
    samples[i].id = std::to_string(i);
    samples[i].turns = {{"Q & A?", {"x"}}, {"Q & A?", {"x"}}};
  }
  const auto page_of = [&](double goal) {
    return eval_page(make_table(choices(), results(), false, goal), choices(), results(), samples);
  };
  const std::string page = page_of(0.3);
  EXPECT_THAT(page, HasSubstr("Q &amp; A?"));
  EXPECT_THAT(page, HasSubstr("&lt;y&gt;"));
  EXPECT_THAT(page, HasSubstr("<tr class=\"best\"><td>post_vision+<wbr>vl-cache at 0.2</td>"));
  const size_t verdict = page.find("class=\"verdict\"><strong>Keep 20 %: <code>vl-cache</code> lost nothing");
  EXPECT_LT(verdict, page.find("<svg"));
  EXPECT_LT(page.find("<svg"), page.find("<table"));
  EXPECT_THAT(page, HasSubstr("<td>36.8 %</td>"));
  EXPECT_THAT(page, HasSubstr("whole pages of 64 slots"));
  const std::string few = page_of(0.98);
  EXPECT_THAT(few, HasSubstr("<strong>Not enough questions: about 195 more are needed"));
  EXPECT_THAT(few, Not(HasSubstr("class=\"best\"")));
  EXPECT_THAT(few, HasSubstr("No row is marked"));
}

TEST(EvalTurnResult, SurvivesAJsonRoundTrip) {
  for (const EvalTurnResult& r : results()) {
    const EvalTurnResult back = turn_from_json(to_json(r));
    EXPECT_EQ(to_json(back), to_json(r));
    EXPECT_EQ(back.answers.size(), 3u);
  }
  // Divergences keep their bits: a resumed evaluation gives the same figures.
  EvalTurnResult r = results()[0];
  r.answers[2].divergences = {.kl = {0.1f, 1e-9f, 1.0f / 3, 0, 12.34567f, 1e-38f}, .n_same_top = 4};
  const EvalTurnResult back = turn_from_json(nlohmann::ordered_json::parse(to_json(r).dump()));
  EXPECT_EQ(back.answers[2].divergences.kl, r.answers[2].divergences.kl);
  EXPECT_EQ(back.answers[2].divergences.n_same_top, 4);
  EXPECT_TRUE(back.answers[1].divergences.kl.empty());
  nlohmann::ordered_json damaged = to_json(r);
  damaged["answers"][2]["kl_of_tokens"][1] = nullptr;
  EXPECT_ANY_THROW(turn_from_json(damaged));
  damaged = to_json(r);
  damaged["answers"][2].erase("n_same_top");
  EXPECT_ANY_THROW(turn_from_json(damaged));
  EXPECT_ANY_THROW(turn_from_json(nlohmann::ordered_json::parse(R"({"id": "x"})")));
}

}  // namespace
}  // namespace vlcache
