// Image tokens that a policy leaves out before the language model sees them.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/engine.h"
#include "engine/sequence/sequence.h"
#include "policy/policy.h"

namespace vlcache {

// Throws Error(kInput) where a model of that configuration cannot tell the policy what it goes by.
void check_suits(const ModelConfig& config, const Policy& policy);

// If the policy chooses among image tokens and has not yet: encodes the prompt's images, lets it choose, shortens the
// prompt to what stays (positions close up, spans name their rows) and sets its `selection`. Images that `earlier`, the
// sequence which is to go on with the prompt, begins with keep the tokens they have there. Returns the indices, in the
// prompt as it was, of the tokens that stay; empty: nothing was to be chosen. Throws as check_suits, the encoder and
// Policy::select.
std::vector<int32_t> select_image_tokens(Engine& engine, const Policy& policy, Prompt& prompt,
                                         const Sequence* earlier = nullptr);

}  // namespace vlcache
