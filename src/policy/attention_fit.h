// Making up for slots that go: biases and values of those that stay, so that attention gives what it gave.
#pragma once

#include "policy/parts.h"

namespace vlcache {

// Gives what is kept of a head a bias, so that it weighs what all slots did, and new values, so that the output is what
// it was, for the window's queries of the kv head's group, which the part's capture must hold. `ridge` draws values to
// the old ones. Source: Attention Matching (arXiv:2602.16284).
void fit_kept_slots(const PartInputs& in, int32_t layer, int32_t head, double ridge, KeepPlan::Head& kept);

}  // namespace vlcache
