// Attention fit: corrects the biases and values of kept slots, so that attention gives nearly what it gave with all
// slots.
#pragma once

#include "policy/parts.h"

namespace vlcache {

// Gives the kept slots of every kv head of a layer biases, so that they weigh what all slots did, and new values, so
// that the output stays the same, for the window's queries of the head's group, which the part's capture must hold.
// `ridge` draws values to the old ones. Source: Attention Matching (arXiv:2602.16284).
void fit_kept_slots(const PartInputs& in, int32_t layer, double ridge, std::span<KeepPlan::Head> kept);

}  // namespace vlcache
