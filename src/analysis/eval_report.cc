// Figure 5 of the VL-Cache paper, from the user's own data.
#include "analysis/eval_report.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>

#include "analysis/html.h"
#include "base/format.h"

namespace vlcache {
namespace {

constexpr size_t kShownQuestions = 60;

std::string percent(double share) { return format("%.1f", 100 * share); }

std::string chart(const EvalTable& table) {
  std::vector<ChartLine> lines;
  std::set<double> budgets;
  for (const EvalLine& line : table.lines) {
    const double budget = std::atof(line.budget.c_str());
    if (line.n == 0 || !(budget > 0 && budget <= 1)) continue;
    if (lines.empty() || lines.back().name != line.kv) lines.push_back({line.kv, {}});
    lines.back().points.push_back({budget, line.score, line.interval.low, line.interval.high});
    budgets.insert(budget);
  }
  if (budgets.empty()) return "";
  for (ChartLine& line : lines) std::ranges::sort(line.points, {}, &ChartPoint::x);
  return line_chart(lines, {.x_label = "share of the prompt's KV that is kept",
                            .y_label = "score",
                            .x_ticks = {budgets.begin(), budgets.end()},
                            .reference = table.lines[0].score});
}

std::string html_table(const EvalTable& table) {
  std::string text =
      "<div class=\"wide\"><table><tr><th>policy</th><th>budget</th><th>score</th><th>95 %</th><th>of full</th><th>95 "
      "%</th>";
  for (const auto& [kind, n] : table.kinds) text += "<th>" + escape_html(kind.empty() ? "all" : kind) + "</th>";
  text += "<th>same tokens</th><th>KV bytes</th>" +
          std::string(table.has_ended ? "<th>ended before the policy acted</th>" : "") + "<th>failed</th></tr>";
  for (const EvalLine& line : table.lines) {
    text += "<tr><td>" + escape_html(line.kv) + "</td><td>" + escape_html(line.budget) + "</td>";
    if (line.n == 0) {
      text += "<td colspan=\"" + std::to_string(7 + table.kinds.size() + (table.has_ended ? 1 : 0)) +
              "\" class=\"text\">– " + escape_html(line.error) + "</td></tr>";
      continue;
    }
    text += "<td>" + percent(line.score) + "</td><td>" + percent(line.interval.low) + "–" +
            percent(line.interval.high) + "</td><td>" + percent(line.share) + "</td><td>" +
            percent(line.share_interval.low) + "–" + percent(line.share_interval.high) + "</td>";
    for (const auto& [kind, score] : line.by_kind) text += "<td>" + percent(score) + "</td>";
    text += "<td>" + percent(line.same_tokens) + "</td><td>" + percent(line.kv_share) + "</td><td>" +
            (table.has_ended ? std::to_string(line.n_ended) + "</td><td>" : "") +
            (line.n_failed > 0 ? std::to_string(line.n_failed) : "") + "</td></tr>";
  }
  return text + "</table></div>";
}

// Questions with different answers, and the policies that gave each.
std::string disagreements(const std::vector<EvalChoice>& choices, const std::vector<EvalTurnResult>& results,
                          const std::vector<EvalSample>& samples) {
  std::map<std::string, const EvalSample*> by_id;
  for (const EvalSample& sample : samples) by_id[sample.id] = &sample;
  std::string text;
  size_t n = 0;
  for (const EvalTurnResult& result : results) {
    std::map<std::string, std::vector<size_t>> said;
    for (size_t i = 0; i < result.answers.size(); ++i) {
      if (result.answers[i].error.empty()) said[result.answers[i].text].push_back(i);
    }
    const auto sample = by_id.find(result.id);
    if (said.size() < 2 || sample == by_id.end() || ++n > kShownQuestions) continue;
    const EvalTurn& turn = sample->second->turns.at(static_cast<size_t>(result.turn));
    text += "<details><summary>" + escape_html(result.id) + ": " + escape_html(turn.question) +
            "</summary><p class=\"soft\">right: " + escape_html(turn.answers[0]) + "</p><div class=\"wide\"><table>";
    for (const auto& [answer, choices_of_answer] : said) {
      const bool right = result.answers[choices_of_answer[0]].score >= 0.5;
      text += "<tr><td class=\"text " + std::string(right ? "right" : "wrong") + "\">" + escape_html(answer) +
              "</td><td class=\"text\">";
      for (const size_t i : choices_of_answer) {
        text += escape_html(choices[i].policy->name() + (choices[i].budget.empty() ? "" : " " + choices[i].budget)) +
                "<br>";
      }
      text += "</td></tr>";
    }
    text += "</table></div></details>";
  }
  if (text.empty()) return "<p>All policies gave the same answers.</p>";
  return "<p class=\"soft\">" + std::to_string(std::min(n, kShownQuestions)) + " of " + std::to_string(n) +
         " questions.</p>" + text;
}

}  // namespace

std::string eval_page(const EvalTable& table, const std::vector<EvalChoice>& choices,
                      const std::vector<EvalTurnResult>& results, const std::vector<EvalSample>& samples) {
  return html_page("Accuracy over KV budget", "<p class=\"soft\">" + escape_html(table.model) + " on " +
                                                  escape_html(table.data) + ", " + std::to_string(table.n_turns) +
                                                  " questions. Bars and brackets: 95 % of bootstrap resamples; shares "
                                                  "are of the full cache's score on the same "
                                                  "questions, in pairs.</p>" +
                                                  chart(table) + "<h2>Policies and budgets</h2>" + html_table(table) +
                                                  "<h2>Where answers differ</h2>" +
                                                  disagreements(choices, results, samples));
}

}  // namespace vlcache
