// encode_steps() runs an encoder's steps and tells of the work that each has done.
#pragma once

#include "base/function_ref.h"
#include "engine/compute_pace.h"
#include "engine/engine.h"
#include "store/kv_tier.h"

namespace vlcache {

using WorkTold = FunctionRef<void(const ComputeWork& done)>;

// Continues with `encoding` of `image`, for at least one step, until it is complete or `until`. The engine's pace is
// told the time of each step, then `told` its work. Returns whether more steps are left. Throws the encoder's errors
// and errors of `told`.
bool encode_steps(Engine& engine, const ImageTiles& image, Model::Encoding& encoding, Deadline until,
                  const WorkTold& told);

}  // namespace vlcache
