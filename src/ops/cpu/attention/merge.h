// Merges two sums of exponentials over parts of the slots: items of a tile, parts of statistics, partial results of
// attention.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/backend.h"
#include "ops/cpu/attention/kernels.h"

namespace vlcache::cpu {

// Two sums, one relative to base^top_a and one to base^top_b, are relative to base^top once multiplied by a and b.
struct Merge {
  float top;
  float a;
  float b;
};
// `log2_base`: kLog2e for natural logs. A top of -inf is a sum over nothing; two of them give factors 0.
inline Merge merge(float top_a, float top_b, float log2_base = 1.0f) {
  const float top = std::max(top_a, top_b);
  if (top == -std::numeric_limits<float>::infinity()) return {top, 0.0f, 0.0f};
  return {top, std::exp2((top_a - top) * log2_base), std::exp2((top_b - top) * log2_base)};
}

// log2 of e^(a query head's sink logit); -inf: it has none.
inline float sink_of(const AttentionArgs& args, int64_t head) {
  if (args.sink_logits.empty()) return -std::numeric_limits<float>::infinity();
  return args.sink_logits[static_cast<size_t>(head)] * kLog2e;
}

// Sum of kLanes partial sums.
inline float sum_lanes(const float* x) {
  float four[4];  // independent chains
  for (int i = 0; i < 4; ++i) four[i] = (x[i] + x[i + 4]) + (x[i + 8] + x[i + 12]);
  return (four[0] + four[1]) + (four[2] + four[3]);
}

}  // namespace vlcache::cpu
