// What a policy may ask the forward pass to record of a prefill, and the record. A = attention of a prompt token (a
// row) to a slot (a column).
#pragma once

#include <cstdint>
#include <vector>

#include "base/buffer.h"
#include "base/tensor.h"

namespace vlcache {

struct CaptureRequest {
  // How the query heads of a kv head become one number.
  enum class Reduce : uint8_t { kMean, kSum, kMax };
  Reduce reduce = Reduce::kMean;

  // Over all prompt tokens. They are reduced chunk by chunk, so sums go with kMean or kSum, maxima with kMax.
  bool all_sums = false;
  bool all_max = false;

  // Over the last `window` prompt tokens, or as many of them as this request computes itself.
  int32_t window = 0;
  bool window_queries = false;  // keep their rotated queries
  bool window_sums = false;     // weighted by window_weights
  bool window_max = false;
  bool window_counts = false;  // where A is below threshold times the row's maximum
  float threshold = 0.01f;
  std::vector<float> window_weights;  // [window] of each row in window_sums, the last one's last; empty: 1

  bool needs_all_rows() const { return all_sums || all_max; }
  bool any() const {
    return needs_all_rows() || (window > 0 && (window_queries || window_sums || window_max || window_counts));
  }
};

// One layer of one sequence, Hk kv heads. A column is a slot of the head, in the order of the cache; there are at most
// n_columns. w rows of the window were computed.
struct LayerCapture {
  Tensor all_sums, all_max;          // [Hk, n_columns] f32, where asked for
  Tensor window_sums, window_max;    // [Hk, n_columns] f32
  Tensor below_counts, seen_counts;  // [Hk, n_columns] f32: rows whose A is small, rows that see the slot
  Tensor window_queries;             // [w, H, d] compute dtype
  Buffer storage;
};

struct Capture {
  CaptureRequest request;
  std::vector<LayerCapture> layers;
};

}  // namespace vlcache
