// Continues one prefill in several ways: forks, and plans of policies that did not run it.
#pragma once

#include <span>
#include <vector>

#include "engine/engine.h"
#include "engine/sequence/sequence.h"
#include "policy/parts.h"

namespace vlcache {

// Whether a policy leaves the prefill unchanged and acts after it: its plan can then be computed along with others,
// from one prefill.
bool acts_after_prompt(const Policy& policy);

// Whether a sequence under the policy can be forked after its prompt, and continues as it would alone.
bool goes_on_from_forks(const Policy& policy);

// Computes what `policy` would keep, within the call to another policy that requested its captures too.
void plan_beside(const Policy& policy, const PlanInputs& in, KeepPlan& plan);

// Computes the pending tokens of `sequence`, which has taken `prompt`; returns the logits of its last token. Throws the
// errors of the computation.
std::vector<float> last_logits(Engine& engine, Sequence& sequence, Prompt prompt);

// The likeliest tokens after a computed sequence whose last logits are given, until one of `stops` (included) or
// max_tokens. `hooks` observe every step.
std::vector<int32_t> greedy(Engine& engine, Sequence& sequence, std::span<const float> logits, int32_t max_tokens,
                            std::span<const int32_t> stops, LayerHooks* hooks = nullptr);

// A score of 0 for every slot.
SlotScores empty_scores(const PolicySlots& slots);

}  // namespace vlcache
