// Measures what the machine can do at this moment: the figures that every speed is compared with.
#pragma once

#include "base/buffer.h"

namespace vlcache {

struct MachineLimits {
  double read_gb_s = 0;    // streaming reads of memory beyond every cache, 1e9 bytes, all threads
  double bf16_tflops = 0;  // bf16 products with f32 sums on registers, all threads; f32_tflops where the CPU has none
  double f32_tflops = 0;   // f32 fused multiply-adds on registers, all threads
  double int8_tops = 0;    // products of bytes with 32-bit sums on registers (VNNI), all threads; 0: the CPU has none
};

// Holds 512 MiB to read from. Throws Error(kUnsupported) in a build without a fast backend.
class LimitsProbe {
 public:
  LimitsProbe();

  // Takes about `seconds` on n_threads() threads: the median over pieces of about a millisecond, because the measured
  // speed it is compared with is an average too. Shared machines drift within seconds: measure right before and after.
  MachineLimits measure(double seconds) const;

 private:
  Buffer memory_;
};

}  // namespace vlcache
