// Declares the probes of memory bandwidth and arithmetic used by LimitsProbe.
#pragma once

#include "base/buffer.h"
#include "ops/limits.h"

namespace vlcache::cpu {

// Memory for the read probe, touched by the threads that will read it.
Buffer probe_memory();

// See LimitsProbe::measure.
MachineLimits measure_limits(double seconds, const Buffer& memory);

// Whether bf16 dot products do more operations in a time than f32 multiply-adds do; requires Isa::kAvx512Bf16. Measured
// once, in about 0.1 ms. On an Emerald Rapids they do half as many (a dot product every other cycle, two multiply-adds
// each), which matters where a virtual machine hides AMX.
bool bf16_dots_pay();

// Whether AVX2 multiplies codes with integers of x faster than their values with f32; requires Isa::kAvx2. Measured
// once, like the above. A CPU that multiplies words in one of its pipes alone does not.
bool word_products_pay();

}  // namespace vlcache::cpu
