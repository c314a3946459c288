// Going on from one prefill in several ways.
#pragma once

#include <span>
#include <vector>

#include "engine/engine.h"
#include "engine/sequence/sequence.h"
#include "policy/parts.h"

namespace vlcache {

// Whether a policy leaves the prefill as it is and acts behind it: what it would keep can then be found out beside
// others, from one prefill.
bool acts_behind_prompt(const Policy& policy);

// Whether a sequence under the policy can be forked behind its prompt, and goes on as if it were alone.
bool goes_on_from_forks(const Policy& policy);

// What `policy` would keep where another policy, which asked for its captures too, is asked.
void plan_beside(const Policy& policy, const PlanInputs& in, KeepPlan& plan);

// Computes what is pending of `sequence`, which has taken `prompt`; returns the logits of its last token. Throws what
// goes wrong.
std::vector<float> last_logits(Engine& engine, Sequence& sequence, Prompt prompt);

int32_t likeliest(std::span<const float> logits);

// The likeliest tokens behind a computed sequence whose last logits are given, until one of `stops` (included) or
// max_tokens. `hooks` see every step.
std::vector<int32_t> greedy(Engine& engine, Sequence& sequence, std::span<const float> logits, int32_t max_tokens,
                            std::span<const int32_t> stops, LayerHooks* hooks = nullptr);

// A score of 0 for every slot.
SlotScores empty_scores(const PolicySlots& slots);

}  // namespace vlcache
