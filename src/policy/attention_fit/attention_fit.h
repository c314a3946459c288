// Attention fit: corrects the biases and values of kept slots, so that attention gives nearly what it gave with all
// slots.
#pragma once

#include "policy/parts.h"

namespace vlcache {

// Gives the kept slots of kv heads of a layer, the first of which is `first`, biases, so that they weigh what all slots
// did, and new values, so that the output stays the same, for the window's queries of the head's group, which the
// part's capture must hold.
// `ridge` draws values to the old ones. Source: Attention Matching (arXiv:2602.16284).
void fit_kept_slots(const PartInputs& in, int32_t layer, int32_t first, double ridge, std::span<KeepPlan::Head> kept);

}  // namespace vlcache
