// The probes behind LimitsProbe.
#pragma once

#include "base/buffer.h"
#include "ops/limits.h"

namespace vlcache::cpu {

// Memory for the read probe, touched by the threads that will read it.
Buffer probe_memory();

// See LimitsProbe::measure.
MachineLimits measure_limits(double seconds, const Buffer& memory);

}  // namespace vlcache::cpu
