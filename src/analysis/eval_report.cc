// Figure 5 of the VL-Cache paper, from the user's own data.
#include "analysis/eval_report.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <optional>
#include <set>

#include "analysis/html.h"
#include "analysis/verdicts.h"
#include "base/contracts/kv.h"
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

// A row per policy and budget; line `best` is marked.
std::string html_table(const EvalTable& table, size_t best) {
  std::string text =
      "<div class=\"wide\"><table><tr><th>policy</th><th>budget</th><th>score</th><th>95 %</th><th>share of the full "
      "cache's score</th><th>95 %</th><th>lost</th><th>gained</th><th>same tokens</th><th>KV bytes</th>" +
      std::string(table.has_ended ? "<th>ended before the policy acted</th>" : "") + "<th>failed</th></tr>";
  for (size_t i = 0; i < table.lines.size(); ++i) {
    const EvalLine& line = table.lines[i];
    text += std::string(i == best ? "<tr class=\"best\">" : "<tr>") + "<td>" + escape_html(line.kv) + "</td><td>" +
            escape_html(line.budget) + "</td>";
    if (line.n == 0) {
      text += "<td colspan=\"" + std::to_string(table.has_ended ? 10 : 9) + "\" class=\"text\">– " +
              escape_html(line.error) + "</td></tr>";
      continue;
    }
    text += "<td>" + percent(line.score) + "</td><td>" + percent(line.interval.low) + "–" +
            percent(line.interval.high) + "</td><td>" + percent(line.share) + "</td><td>" +
            percent(line.share_interval.low) + "–" + percent(line.share_interval.high) + "</td><td>" +
            std::to_string(line.n_lost) + "</td><td>" + std::to_string(line.n_gained) + "</td><td>" +
            percent(line.same_tokens) + "</td><td>" + percent(line.kv_share) + " %</td><td>" +
            (table.has_ended ? std::to_string(line.n_ended) + "</td><td>" : "") +
            (line.n_failed > 0 ? std::to_string(line.n_failed) : "") + "</td></tr>";
  }
  return text + "</table></div>";
}

// Scores by kind of question; "" for one kind.
std::string kinds_table(const EvalTable& table) {
  if (table.kinds.size() < 2) return "";
  std::string text = "<div class=\"wide\"><table><tr><th>policy</th><th>budget</th>";
  for (const auto& [kind, n] : table.kinds) {
    text += "<th>" + escape_html(kind.empty() ? "other" : kind) + format(" (%d)", n) + "</th>";
  }
  text += "</tr>";
  for (const EvalLine& line : table.lines) {
    text += "<tr><td>" + escape_html(line.kv) + "</td><td>" + escape_html(line.budget) + "</td>";
    for (const auto& [kind, score] : line.by_kind) text += "<td>" + percent(score) + "</td>";
    text += "</tr>";
  }
  return fold("Scores by kind of question", text + "</table></div>");
}

// What the table's figures mean.
std::string legend(const EvalTable& table, const std::optional<BestLine>& best,
                   const std::vector<EvalTurnResult>& results) {
  double n_tokens = 0, n = 0;
  for (const EvalTurnResult& result : results) {
    if (result.turn > 0) continue;
    n_tokens += result.n_prompt;
    ++n;
  }
  const double n_mean = std::max(1.0, n_tokens / std::max(1.0, n));
  std::string text = best ? "<p>" + escape_html(best_line_rule(table, *best)) + "</p>" : "";
  text += format(
      "<p class=\"soft\">Why KV bytes stand above the budget: memory is held in whole pages of %d slots a head (a "
      "prompt has %.0f tokens on average, so a page is %.0f %% of it), with tables that find them; with longer prompts "
      "the two figures come together. KV bytes are counted after the prompt: the answer's own KV comes on top. "
      "Protected slots, such as the prompt's last ones, are inside the budget.</p>",
      kPageSlots, n_mean, std::min(100.0, 100 * kPageSlots / n_mean));
  return text +
         "<p class=\"soft\">Lost and gained: questions whose score is below or above the full cache's. The intervals "
         "in the table are of bootstrap resamples in pairs and cannot show a loss that no question showed; the one in "
         "the verdict (Clopper and Pearson) can.</p>";
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
  const std::optional<BestLine> best = best_line(table);
  return html_page("Accuracy over KV budget",
                   verdict_box(eval_verdict(table)) + "<p class=\"soft\">" + escape_html(table.model) + " on " +
                       escape_html(table.data) + ", " + std::to_string(table.n_turns) +
                       (table.n_turns == 1 ? " question.</p>" : " questions.</p>") + "<h2>Policies and budgets</h2>" +
                       html_table(table, best ? best->index : table.lines.size()) + legend(table, best, results) +
                       kinds_table(table) + "<h2>Score over budget</h2>" + chart(table) +
                       "<h2>Where answers differ</h2>" + disagreements(choices, results, samples));
}

}  // namespace vlcache
