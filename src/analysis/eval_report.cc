// Figure 5 of the VL-Cache paper, from the user's own data.
#include "analysis/eval_report.h"

#include <algorithm>
#include <cmath>
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
constexpr double kRound = 0.2;  // the chart's lower end is a multiple of this

std::string percent(double share) { return format("%.1f", 100 * share); }

std::string chart(const EvalTable& table) {
  std::vector<ChartLine> lines;
  std::set<double> budgets;
  double low = table.goal;
  for (const EvalLine& line : table.lines) {
    const double budget = std::atof(line.budget.c_str());
    if (line.n == 0 || !(budget > 0 && budget <= 1)) continue;
    if (lines.empty() || lines.back().name != line.kv) lines.push_back({line.kv, {}});
    lines.back().points.push_back({budget, line.kept, line.kept_at_least(), line.kept});
    low = std::min(low, line.kept_at_least());
    budgets.insert(budget);
  }
  if (budgets.empty()) return "";
  for (ChartLine& line : lines) std::ranges::sort(line.points, {}, &ChartPoint::x);
  return line_chart(lines, {.x_label = "share of the prompt's KV that is kept",
                            .y_label = "right answers kept",
                            .x_ticks = {budgets.begin(), budgets.end()},
                            .y_low = std::floor(low / kRound) * kRound,
                            .reference = table.goal}) +
         format(
             "<p class=\"soft\">Each point: the share of the full cache's right answers that a policy kept. The line "
             "below it reaches down to the share that is certain (95 %%). A budget is safe if that line ends above the "
             "dashed goal of %g %%.</p>",
             100 * table.goal);
}

// "<tr>" with the name of a line.
std::string row_begin(const EvalLine& line) { return "<tr>" + cell(line.kv) + cell(line.budget); }

// The same in one cell, whose text a narrow screen breaks between the parts of a policy.
std::string narrow_row_begin(const EvalLine& line, bool best) {
  std::string name;
  for (const char c : escape_html(line.kv)) {
    name += c;
    if (c == '+' || c == '@' || c == '/') name += "<wbr>";
  }
  return std::string(best ? "<tr class=\"best\">" : "<tr>") + "<td>" + name +
         (line.budget.empty() ? "" : " at " + escape_html(line.budget)) + "</td>";
}

// The verdicts, a row per policy and budget, in columns that a phone has room for; line `best` is marked.
std::string verdict_table(const EvalTable& table, size_t best) {
  std::string text =
      "<div class=\"wide\"><table class=\"narrow\"><tr><th>policy and budget</th><th>lost</th><th>kept, at "
      "least</th><th>KV bytes</th><th>" +
      goal_heading(table) + "</th></tr>";
  for (size_t i = 0; i < table.lines.size(); ++i) {
    const EvalLine& line = table.lines[i];
    text += narrow_row_begin(line, i == best);
    if (line.n == 0) {
      text += "<td colspan=\"4\" class=\"text\">– " + escape_html(line.error) + "</td></tr>";
      continue;
    }
    const bool full = line.kv == "full";
    text += cell(full ? "" : std::to_string(line.n_lost)) +
            cell(full ? "" : format("%.1f %%", std::floor(1000 * line.kept_at_least() + 1e-9) / 10)) +
            cell(percent(line.kv_share) + " %") + cell(verdict_cell(line)) + "</tr>";
  }
  return text + "</table></div>";
}

std::string figures_table(const EvalTable& table) {
  std::string text =
      "<div class=\"wide\"><table><tr><th>policy</th><th>budget</th><th>score</th><th>lost</th><th>gained"
      "</th><th>right answers kept</th><th>same tokens</th>" +
      std::string(table.has_ended ? "<th>ended before the policy acted</th>" : "") + "<th>failed</th></tr>";
  for (const EvalLine& line : table.lines) {
    if (line.n == 0) continue;
    text += row_begin(line) + cell(percent(line.score)) + cell(std::to_string(line.n_lost)) +
            cell(std::to_string(line.n_gained)) + cell(percent(line.kept) + " %") + cell(percent(line.same_tokens)) +
            (table.has_ended ? cell(std::to_string(line.n_ended)) : "") +
            cell(line.n_failed > 0 ? std::to_string(line.n_failed) : "") + "</tr>";
  }
  return fold("All figures", text + "</table></div>");
}

// "" without divergences.
std::string divergence_table(const EvalTable& table) {
  if (!table.has_kl) return "";
  std::string text = "<p class=\"soft\">" + escape_html(divergence_legend(table)) +
                     "</p><div class=\"wide\"><table><tr><th>policy</th><th>budget</th>";
  for (const char* heading : kDivergenceHeadings) text += "<th>" + std::string(heading) + "</th>";
  text += "</tr>";
  for (const EvalLine& line : table.lines) {
    text += row_begin(line);
    for (const std::string& figure : divergence_cells(line)) text += cell(figure);
    text += "</tr>";
  }
  return fold("Divergence from the full cache", text + "</table></div>");
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
    text += row_begin(line);
    for (const auto& [kind, score] : line.by_kind) text += cell(percent(score));
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
         "<p class=\"soft\">Lost: questions whose score is below the full cache's; gained: above it. Kept: the right "
         "answers of the full cache, less the lost ones, with the gained ones. At least: the lower bound, 95 % sure "
         "for "
         "each row by itself (Tango's score interval for pairs, and never above the bound of as many questions without "
         "a loss, Clopper and Pearson's), as in <code>vlcache tune reuse</code>.</p>";
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
                       (table.n_turns == 1 ? " question.</p>" : " questions.</p>") + chart(table) +
                       "<h2>Policies and budgets</h2>" +
                       verdict_table(table, best && best->reaches ? best->index : table.lines.size()) +
                       legend(table, best, results) + figures_table(table) + divergence_table(table) +
                       kinds_table(table) + "<h2>Where answers differ</h2>" + disagreements(choices, results, samples));
}

}  // namespace vlcache
