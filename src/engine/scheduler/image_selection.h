// select_image_tokens() drops image tokens that a policy does not choose, before the language model sees them.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/engine.h"
#include "engine/scheduler/encode_steps.h"
#include "engine/sequence/sequence.h"
#include "policy/policy.h"

namespace vlcache {

// Throws Error(kInput) if a model of that configuration does not supply what the policy selects by, or cannot place
// tokens where the policy does.
void check_suits(const ModelConfig& config, const Policy& policy);

// If the policy chooses among image tokens and has not yet: encodes the prompt's images, lets it choose, shortens the
// prompt to the chosen tokens (positions close up, where they are indices, spans name their rows) and sets its
// `selection`. Images that `earlier`, the sequence that is to continue with the prompt, begins with keep the tokens
// they have there. `told`: of every step of the encoder. Returns the indices of the remaining tokens in the original
// prompt; empty: nothing was to be chosen. Throws as check_suits, the encoder and Policy::select.
std::vector<int32_t> select_image_tokens(
    Engine& engine, const Policy& policy, Prompt& prompt, const Sequence* earlier = nullptr,
    const WorkTold& told = [](const ComputeWork&) {});

}  // namespace vlcache
