// EvalRunner answers the questions of a sample under many policies: the prompt is computed once, with the captures that
// all of them need; each policy then continues from a fork.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "analysis/dataset.h"
#include "base/numeric/divergence.h"
#include "engine/engine.h"
#include "engine/request.h"
#include "engine/sequence/sequence.h"

namespace vlcache {

// A policy with its budget: a column of the table.
struct EvalChoice {
  std::string kv, budget;  // as given; budget empty: the policy takes none
  PolicyPtr policy;        // resolved
};

struct EvalAnswer {
  std::string text;
  double score = 0;
  std::string error;                 // why there is no answer; the other fields are then empty
  double same_tokens = 0;            // share of the full cache's tokens up to the first that differs
  TokenDivergences divergences;      // from the full cache's distributions over its first tokens; if requested
  double kl = 0;                     // their mean; alone in records of versions that stored no divergences
  int64_t kv_bytes = 0;              // pages and tables after the prompt
  bool ended_before_acting = false;  // the answer was complete before the policy evicted anything
  double plan_ms = 0;                // scores and budgets, on a fork; 0: part of a prefill of its own
};

struct EvalTurnResult {
  std::string id, kind;
  int32_t turn = 0;                 // from 0
  int32_t n_turns = 1;              // of the sample
  int32_t n_prompt = 0;             // tokens
  std::vector<EvalAnswer> answers;  // [n_choices]
};

struct EvalOptions {
  int32_t max_tokens = 64;
  bool query_aware = true;  // Prompt::query_aware
  ImageOptions image{};
  int32_t n_kl_tokens = 0;  // 0: no divergences, which cost a second pass over every answer
};

class EvalRunner {
 public:
  // choices[0] is `full`, with which all are compared.
  EvalRunner(Engine& engine, std::vector<EvalChoice> choices, const EvalOptions& options);
  ~EvalRunner();

  const std::vector<EvalChoice>& choices() const { return choices_; }
  // A result for every turn. Later turns contain the data's own earlier answers. Throws Error for an image or a prompt
  // that cannot be used.
  std::vector<EvalTurnResult> run(const EvalSample& sample);

 private:
  class PlanAll;
  struct Run;

  std::unique_ptr<Sequence> prefill(Prompt prompt, PolicyPtr policy, std::vector<float>& logits);
  // `prepare` returns the turn's prompt, as often as it is needed.
  using Prepare = std::function<Prompt()>;
  void start_first_turn(std::vector<Run>& runs, const Prepare& prepare);
  void advance(Run& run, const Prepare& prepare);
  void answer_alone(Run& run, const Prepare& prepare);
  void generate(std::vector<Run>& runs);
  void add_divergences(std::vector<Run>& runs, const Prepare& prepare);

  Engine& engine_;
  std::vector<EvalChoice> choices_;
  EvalOptions options_;
  std::vector<int32_t> stop_ids_;
};

}  // namespace vlcache
