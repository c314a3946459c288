// StepPlan: what the next step computes, as a value. The plan is a pure function of the running requests and the step
// budget, so tests are tables without a model.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/scheduler/request_state.h"
#include "engine/scheduler/step_budget.h"

namespace vlcache {

// A running request, as far as a plan depends on it.
struct RunningRequest {
  RequestState state = RequestState::kPrefill;
  bool may_stall = false;  // while it loads: a step may compute beside the load, and stall for the rest
  int32_t n_pending = 0;   // tokens; one: it decodes. Without a KV cache (policy `none`) every step is a prompt
  double row_flops = 0;    // of one pending row
};

struct StepLimits {
  int32_t chunk = 512;             // rows of a step at most (EngineOptions::prefill_chunk)
  double unknown_flops = 0;        // of prompts beside decoding, while the budget does not know what they cost
  bool encoded_last_step = false;  // beside decoding; then it is the prompts' turn
  bool encoded_now = false;        // an image has been encoded for this step already
};

struct StepPlan {
  struct Part {
    size_t request = 0;  // index of the running request
    int32_t max_rows = 0;
    friend bool operator==(const Part&, const Part&) = default;
  };
  std::vector<Part> parts;
  // The request whose image is encoded before the step: for encode_ms where others decode, else the whole image, and
  // the rest of the step is planned again after it (encoded_now).
  std::optional<size_t> encode;
  std::optional<double> encode_ms;
  bool decodes = false;  // some requests decode
};

// One row for each request that decodes; then prompts in the order of `running` (their arrival), together at most a
// chunk. While requests decode, the budget bounds the rows of prompts, and images and prompts have steps in turn. A
// request whose policy is acting is left out; so is one that loads; where all do, the first that may stall computes
// beside its load. `plan` is replaced; its memory is used again, so that decoding allocates nothing.
void plan_step(std::span<const RunningRequest> running, const StepBudget& budget, const StepLimits& limits,
               StepPlan& plan);

}  // namespace vlcache
