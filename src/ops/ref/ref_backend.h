// Makes the reference backend: every op as a plain loop in fp32. It defines what is correct; the other backends are
// tested against it.
#pragma once

#include <memory>

#include "ops/backend.h"

namespace vlcache {

// compute_dtype: kF32 or kBF16 (inputs and outputs bf16, arithmetic f32, one rounding on writing).
std::unique_ptr<Backend> make_ref_backend(DType compute_dtype, ActivationBits bits = ActivationBits::k15);

}  // namespace vlcache
