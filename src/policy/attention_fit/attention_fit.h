// Making up for slots that go: biases and values of those that stay, so that attention gives what it gave.
#pragma once

#include "policy/parts.h"

namespace vlcache {

// Gives what is kept of every kv head of a layer biases, so that it weighs what all slots did, and new values, so that
// the output is what it was, for the window's queries of the head's group, which the part's capture must hold. `ridge`
// draws values to the old ones. Source: Attention Matching (arXiv:2602.16284).
void fit_kept_slots(const PartInputs& in, int32_t layer, double ridge, std::span<KeepPlan::Head> kept);

}  // namespace vlcache
