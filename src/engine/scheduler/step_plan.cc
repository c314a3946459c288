#include "engine/scheduler/step_plan.h"

#include <algorithm>

namespace vlcache {
namespace {

constexpr int32_t kFewestRows = 8;  // fewer would read the weights for next to nothing

bool encodes(const RunningRequest& r) { return r.state == RequestState::kEncoding; }
bool computes(const RunningRequest& r) {
  return !encodes(r) && r.state != RequestState::kLoading && r.state != RequestState::kActing;
}
bool decodes(const RunningRequest& r) { return computes(r) && r.n_pending == 1; }
bool has_prompt(const RunningRequest& r) { return computes(r) && r.n_pending != 1; }

// Requests with a prompt to compute or an image to encode.
int n_prompts(std::span<const RunningRequest> running) {
  return static_cast<int>(std::ranges::count_if(running, [](const auto& r) { return encodes(r) || has_prompt(r); }));
}

// Adds pieces of prompts to the plan, whose parts decode.
void plan_prompts(std::span<const RunningRequest> running, const StepBudget& budget, const StepLimits& limits,
                  StepPlan& plan) {
  const double allowed = budget.prompt_flops(n_prompts(running)).value_or(limits.unknown_flops);
  const int32_t fewest = std::min(kFewestRows, limits.chunk);
  int32_t room = limits.chunk - static_cast<int32_t>(plan.parts.size());
  double flops = 0;
  for (size_t i = 0; i < running.size(); ++i) {
    if (!has_prompt(running[i])) continue;
    if (plan.decodes && (budget.decodes_alone() || room <= 0)) return;
    int32_t rows = limits.chunk;
    if (plan.decodes) {
      rows = static_cast<int32_t>(std::min<double>(limits.chunk, (allowed - flops) / running[i].row_flops));
      rows = std::clamp(rows, fewest, limits.chunk);
    }
    rows = std::min(rows, room);
    if (rows <= 0) return;
    plan.parts.push_back({i, rows});
    const int32_t taken = std::min(rows, running[i].n_pending);
    room -= taken;
    flops += running[i].row_flops * taken;
    if (plan.decodes && rows <= kFewestRows) return;
  }
}

}  // namespace

void plan_step(std::span<const RunningRequest> running, const StepBudget& budget, const StepLimits& limits,
               StepPlan& plan) {
  plan.parts.clear();
  plan.encode.reset();
  plan.encode_ms.reset();
  for (size_t i = 0; i < running.size(); ++i) {
    if (decodes(running[i])) plan.parts.push_back({i, 1});
  }
  plan.decodes = !plan.parts.empty();

  const auto image = std::ranges::find_if(running, encodes);
  const bool leaves_to_prompts = limits.encoded_last_step && std::ranges::any_of(running, has_prompt);
  const bool may_encode = !limits.encoded_now && !leaves_to_prompts && !(plan.decodes && budget.decodes_alone());
  if (image != running.end() && may_encode) {
    plan.encode = static_cast<size_t>(image - running.begin());
    if (plan.decodes) plan.encode_ms = budget.prompt_ms(n_prompts(running));
    return;
  }

  plan_prompts(running, budget, limits, plan);
  if (!plan.parts.empty()) return;
  const auto first = std::ranges::find(running, true, &RunningRequest::may_stall);
  if (first != running.end()) plan.parts.push_back({static_cast<size_t>(first - running.begin()), limits.chunk});
}

}  // namespace vlcache
