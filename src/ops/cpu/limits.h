// What this machine can do at this moment: the limits that benchmarks state their figures against.
#pragma once

#include "ops/cpu/cpu_features.h"

namespace vlcache::cpu {

// All threads together; the best of several short runs. 0 where the CPU lacks the instructions.
struct MachineLimits {
  double read_gb_s = 0.0;    // plain streaming reads of memory that no cache holds, 1e9 bytes
  double bf16_tflops = 0.0;  // bf16 dot products on registers, multiply and add counted as two
  double f32_tflops = 0.0;   // f32 fused multiply-adds on registers
};

// Takes about `seconds`, plus the time to touch 512 MiB of memory, which it gives back.
MachineLimits measure_limits(double seconds);

}  // namespace vlcache::cpu
