#include "analysis/eval_runner.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "analysis/forks.h"
#include "api/request_builder.h"
#include "base/clock.h"
#include "base/error.h"
#include "engine/answer_text.h"
#include "engine/scheduler/scheduler.h"
#include "io/image/image.h"

namespace vlcache {
// The state of one choice in a sample.
struct EvalRunner::Run {
  const EvalChoice* choice = nullptr;
  std::unique_ptr<Sequence> sequence;  // after the turn's prompt; null with an error
  std::vector<float> logits;           // of the prompt's last token
  std::vector<int32_t> tokens;         // generated, the stop token included
  EvalAnswer answer;
};

// Keeps everything, and records what each policy would keep.
class EvalRunner::PlanAll final : public Policy {
 public:
  struct Result {
    KeepPlan plan;
    std::optional<Error> error;
    double ms = 0;
  };
  PlanAll(std::vector<const Policy*> policies, std::vector<Result>& results)
      : policies_(std::move(policies)), results_(results) {}

  std::string name() const override { return "full"; }
  std::vector<CaptureRequest> needs(const PromptShape& prompt) const override {
    std::vector<CaptureRequest> all;
    for (const Policy* policy : policies_) {
      for (const CaptureRequest& request : policy->needs(prompt)) join(all, request);
    }
    return all;
  }
  bool plan(const PlanInputs& in, KeepPlan&) const override {
    for (const Policy* policy : policies_) {
      Result& result = results_.emplace_back();
      const auto begin = Clock::now();
      try {
        plan_beside(*policy, in, result.plan);
      } catch (const Error& e) {
        result.error = e;
      }
      result.ms = ms_since(begin);
    }
    return false;
  }

 private:
  std::vector<const Policy*> policies_;
  std::vector<Result>& results_;
};

EvalRunner::EvalRunner(Engine& engine, std::vector<EvalChoice> choices, const EvalOptions& options)
    : engine_(engine), choices_(std::move(choices)), options_(options), stop_ids_(engine.stop_token_ids()) {
  CHECK(!choices_.empty() && choices_[0].policy->name() == "full");
}
EvalRunner::~EvalRunner() = default;

std::unique_ptr<Sequence> EvalRunner::prefill(Prompt prompt, PolicyPtr policy, std::vector<float>& logits) {
  std::unique_ptr<Sequence> sequence = engine_.new_sequence(prompt, std::move(policy));
  logits = last_logits(engine_, *sequence, std::move(prompt));
  return sequence;
}

void EvalRunner::start_first_turn(std::vector<Run>& runs, const Prepare& prepare) {
  std::vector<const Policy*> policies;
  for (const Run& run : runs) {
    const Policy& policy = *run.choice->policy;
    if (acts_after_prompt(policy) && goes_on_from_forks(policy)) policies.push_back(run.choice->policy.get());
  }
  std::vector<PlanAll::Result> results;
  std::vector<float> logits;
  Prompt prompt = prepare();
  // If policies must not see the question, the forks split before it, and each computes it by itself.
  const int32_t n_shared = prompt.acting_shape().n_tokens;
  const bool apart = n_shared < prompt.n_tokens();
  if (apart) {
    prompt.tokens.resize(static_cast<size_t>(n_shared));
    if (!prompt.classes.empty()) prompt.classes.resize(prompt.tokens.size());
    prompt.query_aware = true;
  }
  const auto base = prefill(std::move(prompt), std::make_shared<PlanAll>(policies, results), logits);
  size_t next = 0;
  for (Run& run : runs) {
    try {
      if (!goes_on_from_forks(*run.choice->policy)) {
        answer_alone(run, prepare);
        continue;
      }
      if (!acts_after_prompt(*run.choice->policy)) {
        run.sequence = prefill(prepare(), run.choice->policy, run.logits);
        continue;
      }
      PlanAll::Result& result = results.at(next++);
      run.answer.plan_ms = result.ms;
      if (result.error) throw *result.error;
      run.sequence = base->fork(run.choice->policy, result.plan);
      run.logits = logits;
      if (apart) advance(run, prepare);
    } catch (const Error& e) {
      run.answer.error = e.what();
    }
  }
}

// A policy with its own attention, or one that acts after the answer's first tokens, answers without forks.
void EvalRunner::answer_alone(Run& run, const Prepare& prepare) {
  Request request;
  request.prompt = prepare();
  request.policy = run.choice->policy;
  request.options.max_tokens = options_.max_tokens;
  const GenerateResult result = vlcache::generate(engine_, std::move(request));
  run.tokens.clear();
  for (const GeneratedToken& token : result.tokens) run.tokens.push_back(token.id);
  run.answer.kv_bytes = result.kv.prompt_bytes;
  run.answer.ended_before_acting = result.kv.n_before_acting < 0;
}

// A later turn: the policy acts on what it kept of the earlier turns together with the new tokens.
void EvalRunner::advance(Run& run, const Prepare& prepare) {
  try {
    if (!goes_on_from_forks(*run.choice->policy)) {
      answer_alone(run, prepare);
      return;
    }
    if (run.sequence == nullptr) throw Error(ErrorCode::kInput, "an earlier turn failed");
    Prompt prompt = prepare();
    run.sequence->continue_with(prompt);
    run.logits = last_logits(engine_, *run.sequence, std::move(prompt));
  } catch (const Error& e) {
    run.answer.error = e.what();
    run.sequence.reset();
  }
}

// All answers in one batch, each on a copy of its sequence.
void EvalRunner::generate(std::vector<Run>& runs) {
  std::vector<std::unique_ptr<Sequence>> copies(runs.size());
  Scheduler scheduler(engine_);
  std::vector<RequestId> ids(runs.size(), 0);
  for (size_t i = 0; i < runs.size(); ++i) {
    Run& run = runs[i];
    if (run.sequence == nullptr) continue;
    run.answer.kv_bytes = run.sequence->cache().bytes() + run.sequence->cache().table_bytes();
    const int32_t first = likeliest(run.logits);
    run.tokens = {first};
    if (options_.max_tokens < 2 || std::ranges::find(stop_ids_, first) != stop_ids_.end()) continue;
    copies[i] = run.sequence->fork(run.choice->policy, {});
    copies[i]->add_token(first);
    Request request;
    request.sequence = copies[i].get();
    request.options.max_tokens = options_.max_tokens - 1;
    ids[i] = scheduler.add(std::move(request));
  }
  while (scheduler.step()) {
  }
  for (size_t i = 0; i < runs.size(); ++i) {
    if (ids[i] == 0) continue;
    const GenerateResult result = scheduler.remove(ids[i]);
    if (result.error) runs[i].answer.error = result.error->what();
    for (const GeneratedToken& token : result.tokens) runs[i].tokens.push_back(token.id);
  }
}

// Every choice is forced along the full cache's answer.
void EvalRunner::add_divergences(std::vector<Run>& runs, const Prepare& prepare) {
  const auto n = std::min(runs[0].tokens.size(), static_cast<size_t>(options_.n_kl_tokens));
  if (n < 1) return;
  std::vector<TokenDistribution> full;
  for (Run& run : runs) {
    if (!run.answer.error.empty()) continue;
    const bool is_full = &run == &runs[0];
    TokenDivergences found;
    size_t at = 0;
    const auto take = [&](std::span<const float> logits) {
      const TokenDistribution own(logits);
      if (is_full) full.push_back(own);
      if (at < full.size()) found.add(full[at], own);
      return runs[0].tokens[std::min(++at - 1, n - 1)];
    };
    const auto lead = [&](Request request, size_t n_tokens) {
      request.options.max_tokens = static_cast<int32_t>(n_tokens);
      request.options.ignore_eos = true;
      request.callbacks.choose = take;
      vlcache::generate(engine_, std::move(request));
    };
    try {
      Request request;
      if (run.sequence == nullptr) {
        request.prompt = prepare();
        request.policy = run.choice->policy;
        lead(std::move(request), n);
      } else {
        take(run.logits);
        const auto copy = run.sequence->fork(run.choice->policy, {});
        copy->add_token(runs[0].tokens[0]);
        request.sequence = copy.get();
        if (n > 1) lead(std::move(request), n - 1);
      }
      run.answer.kl = figures(found).mean;
      run.answer.divergences = std::move(found);
    } catch (const Error& e) {
      run.answer.error = e.what();
      if (is_full) return;  // nothing to compare with
    }
  }
}

std::vector<EvalTurnResult> EvalRunner::run(const EvalSample& sample) {
  std::vector<EncodedImage> images;
  for (const std::filesystem::path& path : sample.images) {
    images.push_back(read_encoded_image(path));
    images.back().options = options_.image;
  }
  std::vector<Run> runs(choices_.size());
  for (size_t i = 0; i < runs.size(); ++i) runs[i].choice = &choices_[i];
  std::vector<EvalTurnResult> results;
  for (size_t turn = 0; turn < sample.turns.size(); ++turn) {
    const Prepare prepare = [&] {
      Prompt prompt = prepare_chat(engine_, conversation(sample, turn), images);
      prompt.query_aware = options_.query_aware;
      return prompt;
    };
    for (Run& run : runs) run.answer = {};
    if (turn == 0) {
      start_first_turn(runs, prepare);
    } else {
      for (Run& run : runs) advance(run, prepare);
    }
    generate(runs);
    if (options_.n_kl_tokens > 0) add_divergences(runs, prepare);
    EvalTurnResult& result = results.emplace_back();
    result.id = sample.id;
    result.kind = sample.kind;
    result.turn = static_cast<int32_t>(turn);
    result.n_turns = static_cast<int32_t>(sample.turns.size());
    result.n_prompt = runs[0].sequence->n_tokens();
    for (Run& run : runs) {
      if (run.answer.error.empty()) {
        run.answer.text = answer_text(engine_, run.tokens);
        run.answer.score = score_answer(sample.metric, run.answer.text, sample.turns[turn].answers);
        const auto [a, b] = std::ranges::mismatch(run.tokens, runs[0].tokens);
        run.answer.same_tokens = static_cast<double>(a - run.tokens.begin()) /
                                 static_cast<double>(std::max(run.tokens.size(), runs[0].tokens.size()));
      }
      result.answers.push_back(std::move(run.answer));
    }
  }
  return results;
}

}  // namespace vlcache
