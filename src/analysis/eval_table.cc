#include "analysis/eval_table.h"

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "analysis/verdicts.h"
#include "base/format.h"

namespace vlcache {
namespace {

using OrderedJson = nlohmann::ordered_json;

std::string label(const EvalLine& line) { return line.budget.empty() ? line.kv : line.kv + " " + line.budget; }

EvalLine make_line(const EvalChoice& choice, size_t column, const std::vector<const EvalTurnResult*>& turns,
                   uint64_t seed) {
  EvalLine line{.kv = choice.policy->name(),
                .budget = choice.budget,
                .given = choice.kv,
                .error = {},
                .interval = {},
                .share_interval = {},
                .by_kind = {}};
  std::vector<double> scores, full;
  std::map<std::string, int32_t> n_of_kind;
  double full_bytes = 0;
  for (const EvalTurnResult* turn : turns) {
    const EvalAnswer& answer = turn->answers[column];
    scores.push_back(answer.score);
    full.push_back(turn->answers[0].score);
    line.n_lost += scores.back() < full.back() ? 1 : 0;
    line.n_gained += scores.back() > full.back() ? 1 : 0;
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
    line.kv_bytes += static_cast<double>(answer.kv_bytes);
    full_bytes += static_cast<double>(turn->answers[0].kv_bytes);
    line.plan_ms += answer.plan_ms;
  }
  for (auto& [kind, sum] : line.by_kind) sum /= n_of_kind[kind];
  line.score = mean(scores);
  line.interval = mean_interval(scores, seed);
  line.share = mean(full) > 0 ? mean(scores) / mean(full) : 1.0;
  line.share_interval = ratio_interval(scores, full, seed);
  const double n = std::max(line.n, 1);
  line.kv_share = full_bytes > 0 ? line.kv_bytes / full_bytes : 1.0;
  for (double* x : {&line.same_tokens, &line.kl, &line.kv_bytes, &line.plan_ms}) *x /= n;
  return line;
}

}  // namespace

EvalTable make_table(const std::vector<EvalChoice>& choices, const std::vector<EvalTurnResult>& results,
                     bool later_turns, uint64_t seed) {
  EvalTable table;
  table.seed = seed;
  std::vector<const EvalTurnResult*> turns;
  for (const EvalTurnResult& result : results) {
    if ((result.turn > 0) != later_turns || result.answers.size() != choices.size()) continue;
    turns.push_back(&result);
    ++table.kinds[result.kind];
    for (const EvalAnswer& answer : result.answers) table.has_kl |= answer.kl > 0;
  }
  for (const EvalChoice& choice : choices) table.has_ended |= choice.policy->acts_after_tokens() > 0;
  table.n_turns = static_cast<int32_t>(turns.size());
  for (size_t i = 0; i < choices.size(); ++i) table.lines.push_back(make_line(choices[i], i, turns, seed));
  return table;
}

std::string to_markdown(const EvalTable& table) {
  const bool kinds = table.kinds.size() > 1;
  std::string text = "| policy | budget | score | 95 % | of full | 95 % |";
  std::string rule = "|---|---|---:|---|---:|---|";
  if (kinds) {
    for (const auto& [kind, n] : table.kinds) {
      text += " " + (kind.empty() ? "other" : kind) + format(" (%d)", n) + " |";
      rule += "---:|";
    }
  }
  text += " same tokens |" + std::string(table.has_kl ? " KL |" : "") + " KV bytes |" +
          (table.has_ended ? " answers that ended before the policy acted |" : "") + " failed |\n" + rule + "---:|" +
          (table.has_kl ? "---:|" : "") + "---:|" + (table.has_ended ? "---:|" : "") + "---:|\n";
  for (const EvalLine& line : table.lines) {
    text += "| " + line.kv + " | " + line.budget + " | ";
    if (line.n == 0) {
      text += "– | | – | | ";
      if (kinds) {
        for (size_t i = 0; i < table.kinds.size(); ++i) text += "– | ";
      }
      text += std::string("– | ") + (table.has_kl ? "– | " : "") + "– | " + (table.has_ended ? "– | " : "") +
              std::to_string(line.n_failed) + " |\n";
      continue;
    }
    text += format("%.1f | %.1f–%.1f | %.1f %% | %.1f–%.1f | ", 100 * line.score, 100 * line.interval.low,
                   100 * line.interval.high, 100 * line.share, 100 * line.share_interval.low,
                   100 * line.share_interval.high);
    if (kinds) {
      for (const auto& [kind, score] : line.by_kind) text += format("%.1f | ", 100 * score);
    }
    text += format("%.1f | ", 100 * line.same_tokens);
    if (table.has_kl) text += format("%.3f | ", line.kl);
    text += format("%.1f %% | ", 100 * line.kv_share);
    if (table.has_ended) text += std::to_string(line.n_ended) + " | ";
    text += (line.n_failed > 0 ? std::to_string(line.n_failed) : "") + " |\n";
  }
  return text;
}

std::string to_csv(const EvalTable& table) {
  std::string text =
      "policy,budget,n,failed,score,score_low,score_high,share,share_low,share_high,same_tokens,kl,kv_bytes,kv_share,"
      "plan_ms,ended_before_acting";
  for (const auto& [kind, n] : table.kinds) text += ",score_" + (kind.empty() ? "other" : kind);
  text += "\n";
  for (const EvalLine& line : table.lines) {
    text += "\"" + line.kv + "\"," + line.budget;
    text +=
        format(",%d,%d,%.6g,%.6g,%.6g,%.6g,%.6g,%.6g,%.6g,%.6g,%.0f,%.6g,%.4g,%d", line.n, line.n_failed, line.score,
               line.interval.low, line.interval.high, line.share, line.share_interval.low, line.share_interval.high,
               line.same_tokens, line.kl, line.kv_bytes, line.kv_share, line.plan_ms, line.n_ended);
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
    lines.push_back({{"policy", line.kv},
                     {"budget", line.budget},
                     {"n", line.n},
                     {"failed", line.n_failed},
                     {"error", line.error},
                     {"lost", line.n_lost},
                     {"gained", line.n_gained},
                     {"score", line.score},
                     {"score_interval", {line.interval.low, line.interval.high}},
                     {"share_of_full", line.share},
                     {"share_interval", {line.share_interval.low, line.share_interval.high}},
                     {"same_tokens", line.same_tokens},
                     {"kl", line.kl},
                     {"kv_bytes", line.kv_bytes},
                     {"kv_share", line.kv_share},
                     {"plan_ms", line.plan_ms},
                     {"ended_before_acting", line.n_ended},
                     {"by_kind", std::move(kinds)}});
  }
  return {{"model", table.model},     {"data", table.data}, {"seed", table.seed},
          {"n_turns", table.n_turns}, {"goal", table.goal}, {"verdict", eval_verdict(table)},
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
    answer.ended_before_acting = a.value("ended_before_acting", false);
    answer.error = a.value("error", "");
  }
  return result;
}

std::string safe_budgets(const EvalTable& table, double share) {
  std::map<std::string, std::vector<const EvalLine*>> policies;
  for (const EvalLine& line : table.lines) {
    if (!line.budget.empty()) policies[line.kv].push_back(&line);
  }
  std::string text;
  for (auto& [kv, lines] : policies) {
    std::ranges::sort(lines, std::greater(), &EvalLine::kv_share);
    const EvalLine* safe = nullptr;
    for (const EvalLine* line : lines) {  // from the largest down, as long as all are safe
      if (line->n == 0 || line->share_interval.low < share) break;
      safe = line;
    }
    if (safe == nullptr) {
      text +=
          kv + ": none of the budgets tried keeps " + format("%.1f %%", 100 * share) + " for certain; the best is " +
          label(**std::ranges::max_element(lines, {}, [](const EvalLine* l) { return l->share_interval.low; })) + "\n";
    } else {
      text += kv + ": --kv-budget " + safe->budget +
              format(" keeps %.1f %% (%.1f–%.1f) with %.1f %% of the bytes\n", 100 * safe->share,
                     100 * safe->share_interval.low, 100 * safe->share_interval.high, 100 * safe->kv_share);
    }
  }
  return text;
}

}  // namespace vlcache
