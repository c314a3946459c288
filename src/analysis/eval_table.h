// EvalTable: the results of an evaluation, a line per policy and budget.
#pragma once

#include <array>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "analysis/eval_runner.h"
#include "reuse/evidence/reuse_gate.h"

namespace vlcache {

struct EvalLine {
  std::string kv, budget;
  std::string given;     // the policy as the user wrote it, such as auto
  int32_t n = 0;         // answers
  int32_t n_failed = 0;  // turns without an answer, which count as wrong
  std::string error;     // of the first of them
  int32_t n_lost = 0;    // turns whose score fell below the full cache's
  int32_t n_gained = 0;  // and rose above it
  double score = 0;      // mean
  double kept = 1;       // share of the full cache's right answers that are kept on balance: gains make up for losses
  GateVerdict verdict;   // whether that share reaches the table's goal; verdict.bound is of the loss
  double same_tokens = 0;
  double kl = 0;                 // mean of the answers' mean divergences: every answer counts alike
  DivergenceFigures divergence;  // every compared token counts alike
  int32_t n_not_compared = 0;    // answers of which no token is in these figures
  double kv_bytes = 0;           // mean
  double kv_share = 1;           // of the full cache's bytes
  double plan_ms = 0;            // mean
  int32_t n_ended = 0;           // answers that ended before the policy acted
  std::map<std::string, double> by_kind;

  double kept_at_least() const { return 1 - verdict.bound; }  // with 95 % confidence
  // It loses more than the goal allows, for certain or at the rate so far: more questions like these never suffice.
  bool loses_too_much() const;
  bool saves() const { return n > 0 && n_ended < n && kv_share < 1; }
};

struct EvalTable {
  std::string model, data;
  double goal = 0.98;  // the share of the full cache's right answers that is to be kept, below 1
  int32_t n_turns = 0;
  int32_t n_right = 0;  // turns on which the full cache scores above 0
  bool has_kl = false;
  bool has_ended = false;                // some policy acts after the answer's first tokens
  std::map<std::string, int32_t> kinds;  // and the number of turns of each
  std::vector<EvalLine> lines;           // in the order of the choices, full first
};

// The table of the first turns, or of all later ones.
EvalTable make_table(const std::vector<EvalChoice>& choices, const std::vector<EvalTurnResult>& results,
                     bool later_turns, double goal = EvalTable{}.goal);

// Sets line.kept and line.verdict by the line's losses and gains. The verdict is that of the gate of reuse on right
// answers (reuse/evidence/reuse_gate.h), with the margin that the table's goal leaves.
void judge_line(EvalLine& line, const EvalTable& table);

// A line's verdict as a cell: "yes", "not enough: about 139 more", ..; "" for the full cache and without answers.
std::string verdict_cell(const EvalLine& line);
// The heading of such cells, "keeps 98 %".
std::string goal_heading(const EvalTable& table);

// The table's figures of divergence: the headings of their columns; a line's cells; what they are and, if some answers
// are not in them, which.
inline constexpr std::array kDivergenceHeadings{"tokens", "KL mean", "median", "99.9 %", "same top"};
std::array<std::string, kDivergenceHeadings.size()> divergence_cells(const EvalLine& line);
std::string divergence_legend(const EvalTable& table);

std::string to_markdown(const EvalTable& table);
std::string to_csv(const EvalTable& table);
nlohmann::ordered_json to_json(const EvalTable& table);

// One turn as a line of samples.jsonl and back, so that an evaluation can be resumed.
nlohmann::ordered_json to_json(const EvalTurnResult& result);
EvalTurnResult turn_from_json(const nlohmann::ordered_json& json);  // throws nlohmann's exceptions

// The smallest budget of each policy that reaches the goal, as all larger ones do, a line each.
std::string safe_budgets(const EvalTable& table);

}  // namespace vlcache
