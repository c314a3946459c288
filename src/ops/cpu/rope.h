// Declares the rotary embedding of the cpu backend.
#pragma once

#include "ops/backend.h"
#include "ops/cpu/cpu_features.h"

namespace vlcache::cpu {

// Backend::rope.
void rope(Isa isa, const Tensor& x, const Tensor& cos, const Tensor& sin, const Tensor& y);

}  // namespace vlcache::cpu
