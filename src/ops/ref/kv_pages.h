// Defines the layout of a KV page in the reference backend: 64 rows of K, then 64 of V, as kv_codec.h encodes a head.
#pragma once

#include <vector>

#include "base/contracts/kv.h"

namespace vlcache {

// One head's slots in f32, with their biases and positions.
struct HeadSlots {
  int64_t n_slots = 0;
  int64_t head_dim = 0;
  std::vector<float> k, v;            // [n_slots, d]; NaN where the page is not held
  const float* bias = nullptr;        // [n_slots] or null
  const int32_t* position = nullptr;  // [n_slots] or null: slot j is at position j
};
// As a row sees them that sees pages [1, end) as codes (coded_end).
HeadSlots load_head(const KvView& kv, int head, int32_t end = 1);

}  // namespace vlcache
