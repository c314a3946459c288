#include "analysis/eval_table.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "analysis/verdicts.h"
#include "base/format.h"

namespace vlcache {
namespace {

using OrderedJson = nlohmann::ordered_json;

EvalLine make_line(const EvalChoice& choice, size_t column, const std::vector<const EvalTurnResult*>& turns,
                   const EvalTable& table) {
  EvalLine line{.kv = choice.policy->name(),
                .budget = choice.budget,
                .given = choice.kv,
                .error = {},
                .verdict = {},
                .divergence = {},
                .by_kind = {}};
  std::map<std::string, int32_t> n_of_kind;
  double full_bytes = 0;
  TokenDivergences divergences;
  for (const EvalTurnResult* turn : turns) {
    const EvalAnswer& answer = turn->answers[column];
    const double full = turn->answers[0].score;
    line.score += answer.score;
    line.n_lost += answer.score < full ? 1 : 0;
    line.n_gained += answer.score > full ? 1 : 0;
    line.by_kind[turn->kind] += answer.score;
    ++n_of_kind[turn->kind];
    if (!answer.error.empty()) {
      ++line.n_failed;
      if (line.error.empty()) line.error = answer.error;
      continue;
    }
    ++line.n;
    line.n_ended += answer.ended_before_acting ? 1 : 0;
    line.same_tokens += answer.same_tokens;
    line.kl += answer.kl;
    divergences.n_same_top += answer.divergences.n_same_top;
    divergences.kl.insert(divergences.kl.end(), answer.divergences.kl.begin(), answer.divergences.kl.end());
    line.n_not_compared += table.has_kl && answer.divergences.kl.empty() ? 1 : 0;
    line.kv_bytes += static_cast<double>(answer.kv_bytes);
    full_bytes += static_cast<double>(turn->answers[0].kv_bytes);
    line.plan_ms += answer.plan_ms;
  }
  for (auto& [kind, sum] : line.by_kind) sum /= n_of_kind[kind];
  line.score /= std::max(1, table.n_turns);
  line.divergence = figures(std::move(divergences));
  if (column == 0) {
    line.verdict.bound = 0;  // the full cache itself
  } else {
    judge_line(line, table);
  }
  const double n = std::max(line.n, 1);
  line.kv_share = full_bytes > 0 ? line.kv_bytes / full_bytes : 1.0;
  for (double* x : {&line.same_tokens, &line.kl, &line.kv_bytes, &line.plan_ms}) *x /= n;
  return line;
}

// Separate from the main table, so that its rows fit a terminal of 100 columns.
std::string divergence_markdown(const EvalTable& table) {
  std::string text = "| policy | budget |", rule = "|---|---|";
  for (const char* heading : kDivergenceHeadings) {
    text += " " + std::string(heading) + " |";
    rule += "---:|";
  }
  text += "\n" + rule + "\n";
  for (const EvalLine& line : table.lines) {
    text += "| " + line.kv + " | " + line.budget + " |";
    for (const std::string& cell : divergence_cells(line)) text += " " + cell + " |";
    text += "\n";
  }
  return text;
}

// Of a lower bound, which rounding must not raise.
std::string rounded_down(double share) { return format("%.1f", std::floor(1000 * share + 1e-9) / 10); }

}  // namespace

bool EvalLine::loses_too_much() const {
  return verdict.answer == GateVerdict::Answer::kNo || (!verdict.yes() && 1 - kept >= verdict.limit);
}

void judge_line(EvalLine& line, const EvalTable& table) {
  const ScoreCounts counts{
      .n = table.n_turns, .n_right = table.n_right, .n_lost = line.n_lost, .n_gained = line.n_gained};
  const int32_t n_right = std::clamp(table.n_right + line.n_gained, 1, std::max(1, table.n_turns));
  line.kept = 1 - static_cast<double>(line.n_lost - line.n_gained) / n_right;
  line.verdict = judge(ReuseEvidence{.answers = {}, .floor = {}, .scores = counts}, GateRule{.margin = 1 - table.goal});
}

EvalTable make_table(const std::vector<EvalChoice>& choices, const std::vector<EvalTurnResult>& results,
                     bool later_turns, double goal) {
  EvalTable table;
  table.goal = goal;
  std::vector<const EvalTurnResult*> turns;
  for (const EvalTurnResult& result : results) {
    if ((result.turn > 0) != later_turns || result.answers.size() != choices.size()) continue;
    turns.push_back(&result);
    ++table.kinds[result.kind];
    table.n_right += result.answers[0].score > 0 ? 1 : 0;
    for (const EvalAnswer& answer : result.answers) {
      table.has_kl |= answer.kl > 0 || !answer.divergences.kl.empty();
    }
  }
  for (const EvalChoice& choice : choices) table.has_ended |= choice.policy->acts_after_tokens() > 0;
  table.n_turns = static_cast<int32_t>(turns.size());
  for (size_t i = 0; i < choices.size(); ++i) table.lines.push_back(make_line(choices[i], i, turns, table));
  return table;
}

std::string verdict_cell(const EvalLine& line) {
  if (line.kv == "full" || line.n == 0) return "";
  if (!line.saves()) return line.n_ended == line.n ? "never acted" : "saves nothing";
  if (line.verdict.yes()) return "yes";
  if (line.verdict.answer == GateVerdict::Answer::kNo) return "no: loses too much";
  if (line.loses_too_much()) return "loses too much so far";
  return line.verdict.n_more == 0 ? "not enough questions"
                                  : format("not enough: about %lld more", static_cast<long long>(line.verdict.n_more));
}

std::string goal_heading(const EvalTable& table) { return format("keeps %g %%", 100 * table.goal); }

std::array<std::string, kDivergenceHeadings.size()> divergence_cells(const EvalLine& line) {
  const DivergenceFigures& d = line.divergence;
  if (d.n_tokens == 0) return {"–", "–", "–", "–", "–"};
  return {std::to_string(d.n_tokens), format("%.6f", d.mean), format("%.6f", d.median), format("%.6f", d.p999),
          format("%.2f %%", 100 * d.same_top)};
}

std::string divergence_legend(const EvalTable& table) {
  int32_t n = 0, n_not_compared = 0;
  for (const EvalLine& line : table.lines) {
    n += line.n;
    n_not_compared += line.n_not_compared;
  }
  std::string text =
      "KL divergence of the next token's distribution from the full cache's, in nats, along the full cache's answers: "
      "mean, median and 99.9 % quantile over the tokens, and the share of tokens whose likeliest is the same.";
  if (n_not_compared > 0) {
    text += format(
        " %d of %d answers are left out, because no token's divergence is stored with them: an older version measured "
        "them, or the full cache's answer failed. --restart measures all again.",
        n_not_compared, n);
  }
  return text;
}

std::string to_markdown(const EvalTable& table) {
  const bool kinds = table.kinds.size() > 1;
  std::string text = "| policy | budget | lost | gained | right answers kept | at least (95 %) | " +
                     goal_heading(table) + " | KV bytes | score |";
  std::string rule = "|---|---|---:|---:|---:|---:|---|---:|---:|";
  if (kinds) {
    for (const auto& [kind, n] : table.kinds) {
      text += " " + (kind.empty() ? "other" : kind) + format(" (%d)", n) + " |";
      rule += "---:|";
    }
  }
  text += " same tokens |" + std::string(table.has_ended ? " answers that ended before the policy acted |" : "") +
          " failed |\n" + rule + "---:|" + (table.has_ended ? "---:|" : "") + "---:|\n";
  const size_t n_figures = 7 + (kinds ? table.kinds.size() : 0) + (table.has_ended ? 1 : 0);
  for (const EvalLine& line : table.lines) {
    text += "| " + line.kv + " | " + line.budget + " | ";
    if (line.n == 0) {
      for (size_t i = 0; i <= n_figures; ++i) text += "– | ";
      text += std::to_string(line.n_failed) + " |\n";
      continue;
    }
    if (line.kv == "full") {
      text += "| | | | | ";
    } else {
      text += format("%d | %d | %.1f %% | ", line.n_lost, line.n_gained, 100 * line.kept) +
              rounded_down(line.kept_at_least()) + " % | " + verdict_cell(line) + " | ";
    }
    text += format("%.1f %% | %.1f | ", 100 * line.kv_share, 100 * line.score);
    if (kinds) {
      for (const auto& [kind, score] : line.by_kind) text += format("%.1f | ", 100 * score);
    }
    text += format("%.1f | ", 100 * line.same_tokens);
    if (table.has_ended) text += std::to_string(line.n_ended) + " | ";
    text += (line.n_failed > 0 ? std::to_string(line.n_failed) : "") + " |\n";
  }
  return text + (table.has_kl ? "\n" + divergence_legend(table) + "\n\n" + divergence_markdown(table) : "");
}

std::string to_csv(const EvalTable& table) {
  std::string text =
      "policy,budget,n,failed,lost,gained,kept,kept_at_least,verdict,more_questions,score,same_tokens,kl,kl_mean,"
      "kl_median,kl_p999,same_top,kl_tokens,kl_missing,kv_bytes,kv_share,plan_ms,ended_before_acting";
  for (const auto& [kind, n] : table.kinds) text += ",score_" + (kind.empty() ? "other" : kind);
  text += "\n";
  for (const EvalLine& line : table.lines) {
    text += "\"" + line.kv + "\"," + line.budget;
    text += format(",%d,%d,%d,%d,%.6g,%.6g,\"", line.n, line.n_failed, line.n_lost, line.n_gained, line.kept,
                   line.kept_at_least()) +
            verdict_cell(line) + "\"";
    text += format(",%lld,%.6g,%.6g,%.6g,", static_cast<long long>(line.verdict.n_more), line.score, line.same_tokens,
                   line.kl);
    const DivergenceFigures& d = line.divergence;
    text += d.n_tokens > 0 ? format("%.6g,%.6g,%.6g,%.6g", d.mean, d.median, d.p999, d.same_top) : ",,,";
    text += format(",%lld,%d", static_cast<long long>(d.n_tokens), line.n_not_compared) +
            format(",%.0f,%.6g,%.4g,%d", line.kv_bytes, line.kv_share, line.plan_ms, line.n_ended);
    for (const auto& [kind, score] : line.by_kind) text += format(",%.6g", score);
    text += "\n";
  }
  return text;
}

OrderedJson to_json(const EvalTable& table) {
  OrderedJson lines = OrderedJson::array();
  for (const EvalLine& line : table.lines) {
    OrderedJson kinds = OrderedJson::object();
    for (const auto& [kind, score] : line.by_kind) kinds[kind.empty() ? "other" : kind] = score;
    const DivergenceFigures& d = line.divergence;
    const auto known = [&](double figure) { return d.n_tokens > 0 ? OrderedJson(figure) : OrderedJson(); };
    lines.push_back({{"policy", line.kv},
                     {"budget", line.budget},
                     {"n", line.n},
                     {"failed", line.n_failed},
                     {"error", line.error},
                     {"lost", line.n_lost},
                     {"gained", line.n_gained},
                     {"kept", line.kept},
                     {"kept_at_least", line.kept_at_least()},
                     {"verdict", verdict_cell(line)},
                     {"more_questions", line.verdict.n_more},
                     {"score", line.score},
                     {"same_tokens", line.same_tokens},
                     {"kl", line.kl},
                     {"kl_mean", known(d.mean)},
                     {"kl_median", known(d.median)},
                     {"kl_p999", known(d.p999)},
                     {"same_top", known(d.same_top)},
                     {"kl_tokens", d.n_tokens},
                     {"kl_missing", line.n_not_compared},
                     {"kv_bytes", line.kv_bytes},
                     {"kv_share", line.kv_share},
                     {"plan_ms", line.plan_ms},
                     {"ended_before_acting", line.n_ended},
                     {"by_kind", std::move(kinds)}});
  }
  return {{"model", table.model},     {"data", table.data}, {"n_turns", table.n_turns},
          {"n_right", table.n_right}, {"goal", table.goal}, {"verdict", eval_verdict(table)},
          {"lines", std::move(lines)}};
}

OrderedJson to_json(const EvalTurnResult& result) {
  OrderedJson answers = OrderedJson::array();
  for (const EvalAnswer& a : result.answers) {
    OrderedJson answer{{"text", a.text},
                       {"score", a.score},
                       {"same", a.same_tokens},
                       {"kv_bytes", a.kv_bytes},
                       {"plan_ms", a.plan_ms}};
    if (a.kl > 0) answer["kl"] = a.kl;
    if (!a.divergences.kl.empty()) {
      answer["kl_of_tokens"] = a.divergences.kl;
      answer["n_same_top"] = a.divergences.n_same_top;
    }
    if (a.ended_before_acting) answer["ended_before_acting"] = true;
    if (!a.error.empty()) answer["error"] = a.error;
    answers.push_back(std::move(answer));
  }
  return {{"id", result.id},         {"kind", result.kind},         {"turn", result.turn},
          {"turns", result.n_turns}, {"n_prompt", result.n_prompt}, {"answers", std::move(answers)}};
}

EvalTurnResult turn_from_json(const OrderedJson& json) {
  EvalTurnResult result{.id = json.at("id"),
                        .kind = json.at("kind"),
                        .turn = json.at("turn"),
                        .n_turns = json.at("turns"),
                        .n_prompt = json.at("n_prompt"),
                        .answers = {}};
  for (const OrderedJson& a : json.at("answers")) {
    EvalAnswer& answer = result.answers.emplace_back();
    answer.text = a.at("text");
    answer.score = a.at("score");
    answer.same_tokens = a.at("same");
    answer.kv_bytes = a.at("kv_bytes");
    answer.plan_ms = a.at("plan_ms");
    answer.kl = a.value("kl", 0.0);
    if (a.contains("kl_of_tokens")) {
      answer.divergences = {.kl = a["kl_of_tokens"], .n_same_top = a.at("n_same_top")};
    }
    answer.ended_before_acting = a.value("ended_before_acting", false);
    answer.error = a.value("error", "");
  }
  return result;
}

std::string safe_budgets(const EvalTable& table) {
  std::map<std::string, std::vector<const EvalLine*>> policies;
  for (const EvalLine& line : table.lines) {
    if (!line.budget.empty()) policies[line.kv].push_back(&line);
  }
  std::string text;
  for (auto& [kv, lines] : policies) {
    std::ranges::sort(lines, std::greater(), &EvalLine::kv_share);
    const EvalLine* safe = nullptr;
    for (const EvalLine* line : lines) {  // from the largest down, as long as all are safe
      if (line->n == 0 || !line->verdict.yes()) break;
      safe = line;
    }
    const EvalLine& shown =
        safe != nullptr ? *safe
                        : **std::ranges::max_element(lines, {}, [](const EvalLine* l) { return l->kept_at_least(); });
    text += kv +
            (safe != nullptr ? ": "
                             : ": none of the budgets tried is certain to keep " +
                                   format("%g %%; the best is ", 100 * table.goal)) +
            "--kv-budget " + shown.budget + ", which keeps at least " + rounded_down(shown.kept_at_least()) +
            format(" %% with %.1f %% of the bytes\n", 100 * shown.kv_share);
  }
  return text;
}

}  // namespace vlcache
