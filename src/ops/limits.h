// What the machine could do at this moment: the figures that every speed is compared with.
#pragma once

namespace vlcache {

struct MachineLimits {
  double read_gb_s = 0;  // streaming reads of memory beyond every cache, all threads
  double bf16_tflops =
      0;                  // bf16 products with f32 sums, registers only, all threads; f32_tflops where the CPU has none
  double f32_tflops = 0;  // f32 multiply-add, registers only, all threads
};

// Runs each probe for about `seconds` on n_threads() threads and takes its best piece. Shared machines drift within
// minutes: measure before and after what is compared with it.
MachineLimits measure_limits(double seconds);

}  // namespace vlcache
