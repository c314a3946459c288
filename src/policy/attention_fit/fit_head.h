// FitHead and its kernels: the arithmetic of a kv head's fit, compiled once per instruction set.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ops/isa.h"

namespace vlcache {

// A kv head's slots, and the queries it is fitted to.
struct FitHead {
  int64_t n_slots = 0, n_queries = 0, head_dim = 0;
  const float* k = nullptr;        // [n_slots, head_dim]
  const float* v = nullptr;        // [n_slots, head_dim]
  const float* queries = nullptr;  // [n_queries, head_dim], scaled
  std::span<const int32_t> query_places, slot_places;
  std::span<const float> bias;  // [n_slots] or none
  std::span<const float>
      sinks;           // [n_queries] or none: logits that join the sums of weights (AttentionArgs::sink_logits)
  int32_t window = 0;  // > 0: a query sees positions > its own - window only
};

// Fits values [keep.size(), head_dim] and bias [keep.size()], with which the slots `keep` come nearest to the output of
// all slots.
using FitKernel = void(const FitHead& head, double ridge, std::span<const int32_t> keep, std::span<float> values,
                       std::span<float> bias);
FitKernel fit_head_plain, fit_head_avx2, fit_head_avx512;

// Memory for a kernel's matrices, to be freed by std::free, in whole lines of the cache. Throws Error(kMemory): kernels
// do not, because the linker could choose an error's inline functions from a file of another instruction set.
void* fit_memory(size_t bytes);

// The kernels of the levels up to `isa`, the best first.
std::vector<FitKernel*> fit_kernels(Isa isa);

}  // namespace vlcache
