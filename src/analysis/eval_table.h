// EvalTable: the results of an evaluation, a line per policy and budget.
#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "analysis/eval_runner.h"
#include "base/numeric/statistics.h"

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
  Interval interval;     // 95 %
  double share = 1;      // of the full cache's score on the same turns
  Interval share_interval;
  double same_tokens = 0;
  double kl = 0;
  double kv_bytes = 0;  // mean
  double kv_share = 1;  // of the full cache's bytes
  double plan_ms = 0;   // mean
  int32_t n_ended = 0;  // answers that ended before the policy acted
  std::map<std::string, double> by_kind;
};

struct EvalTable {
  std::string model, data;
  uint64_t seed = 0;
  double goal = 0.98;  // the share of the full cache's score that is to be kept
  int32_t n_turns = 0;
  bool has_kl = false;
  bool has_ended = false;                // some policy acts after the answer's first tokens
  std::map<std::string, int32_t> kinds;  // and the number of turns of each
  std::vector<EvalLine> lines;           // in the order of the choices, full first
};

// The table of the first turns, or of all later ones.
EvalTable make_table(const std::vector<EvalChoice>& choices, const std::vector<EvalTurnResult>& results,
                     bool later_turns, uint64_t seed);

std::string to_markdown(const EvalTable& table);
std::string to_csv(const EvalTable& table);
nlohmann::ordered_json to_json(const EvalTable& table);

// One turn as a line of samples.jsonl and back, so that an evaluation can be resumed.
nlohmann::ordered_json to_json(const EvalTurnResult& result);
EvalTurnResult turn_from_json(const nlohmann::ordered_json& json);  // throws nlohmann's exceptions

// The smallest budget of each policy whose lower bound reaches `share` of the full cache's score, a line each.
std::string safe_budgets(const EvalTable& table, double share);

}  // namespace vlcache
