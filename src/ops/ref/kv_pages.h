// Defines the layout of a KV page in the reference backend: K [64, d], then V [64, d], in the codec's element type.
#pragma once

#include <vector>

#include "base/contracts/kv.h"

namespace vlcache {

// K and V of one slot inside its page.
struct SlotRef {
  std::byte* k;
  std::byte* v;
  KvCodec codec;
};
SlotRef slot_ref(const KvView& kv, int head, int64_t slot);

// One head's slots in f32, with their biases and positions.
struct HeadSlots {
  int64_t n_slots = 0;
  int64_t head_dim = 0;
  std::vector<float> k, v;            // [n_slots, d]
  const float* bias = nullptr;        // [n_slots] or null
  const int32_t* position = nullptr;  // [n_slots] or null: slot j is at position j
};
HeadSlots load_head(const KvView& kv, int head);

}  // namespace vlcache
