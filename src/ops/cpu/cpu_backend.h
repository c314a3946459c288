// Makes the CPU backend.
#pragma once

#include <memory>

#include "ops/backend.h"
#include "ops/cpu/cpu_features.h"

namespace vlcache {

struct CpuBackendOptions {
  cpu::Isa max_isa = cpu::Isa::kAmxBf16;  // the highest level used, even if the CPU has more
  bool byte_dots = true;                  // dot products of bytes (VNNI), where the CPU has them
  ActivationBits activation_bits = ActivationBits::k15;
};

// compute_dtype: kF32 or kBF16. One forward pass at a time per backend: it owns scratch memory.
std::unique_ptr<Backend> make_cpu_backend(DType compute_dtype, const CpuBackendOptions& options);
std::unique_ptr<Backend> make_cpu_backend(DType compute_dtype);  // with everything the CPU has

}  // namespace vlcache
