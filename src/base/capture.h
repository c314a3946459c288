// What a policy may ask the forward pass to record of a prefill, and the record.
#pragma once

#include <cstdint>
#include <vector>

#include "base/buffer.h"
#include "base/tensor.h"

namespace vlcache {

struct CaptureRequest {
  int32_t query_window = 0;       // keep the rotated queries of the last w prompt tokens
  bool column_sums = false;       // attention every slot received from all prompt tokens
  bool threshold_counts = false;  // over the last w queries: where attention is below threshold * row maximum
  float threshold = 0.01f;

  bool any() const { return query_window > 0 || column_sums || threshold_counts; }
};

// One layer of one sequence. H query heads, n prompt slots; w = min(query_window, prompt tokens).
struct LayerCapture {
  Tensor window_queries;  // [w, H, d] compute dtype
  Tensor column_sums;     // [H, n] f32
  Tensor below_counts;    // [H, n] f32
  Tensor seen_counts;     // [H, n] f32: of the w queries, how many see the slot
  Buffer storage;
};

struct Capture {
  CaptureRequest request;
  std::vector<LayerCapture> layers;
};

}  // namespace vlcache
