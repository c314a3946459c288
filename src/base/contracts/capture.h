// Defines what a policy may ask the forward pass to record of a prefill, and the record. A = attention of a prompt
// token (a row) to a slot (a column).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/buffer.h"
#include "base/tensor.h"

namespace vlcache {

// The prompt repeated after itself in pieces, each after an instruction to repeat it. These tokens are computed for
// what their rows attend to, then discarded. Source: KVzip, arXiv:2505.23416.
struct Replay {
  int32_t piece = 0;      // tokens of a piece at most; 0: no replay
  int32_t n_sinks = 0;    // first tokens that every row sees
  int32_t n_skipped = 0;  // first tokens that are not repeated
  bool operator==(const Replay&) const = default;
};

inline constexpr int32_t kReplayPiece = 2048;  // KVzip's

struct CaptureRequest {
  // How the query heads of a kv head become one number.
  enum class Reduce : uint8_t { kMean, kSum, kMax };
  Reduce reduce = Reduce::kMean;

  // Over all prompt tokens. They are reduced chunk by chunk, so sums fit kMean or kSum, maxima with kMax.
  bool all_sums = false;
  bool all_max = false;
  int32_t band = 0;          // > 0: also sums over the rows to whose last `band` slots, their own included, j belongs
  uint64_t gumbel_seed = 0;  // != 0: of softmax(logits + gumbel_noise) instead of A

  // Over the last `window` prompt tokens, or as many of them as this request computes itself; and over `ahead` tokens
  // of a draft of the answer, which are computed after the prompt and then discarded. Where KV pages become codes, rows
  // are reduced before values that they see are freed: sums fit kMean or kSum, maxima kMax.
  int32_t window = 0;
  int32_t ahead = 0;
  bool window_queries = false;  // keep their rotated queries
  bool window_sums = false;     // weighted by window_weights
  bool window_max = false;
  bool window_counts = false;     // where A is small: below threshold times the row's maximum, or ...
  bool small_is_uniform = false;  // ... below 1 / slots that the row sees
  float threshold = 0.01f;
  // With a replay the window is all of its rows, instructions included, instead of the prompt's last tokens, and there
  // is no draft. A of such a row is taken over the sinks and the piece it repeats, and counted for that piece alone.
  // window_queries belong to `window` rows that repeat a token, evenly spread.
  Replay replay;
  std::vector<float> window_weights;  // [window] of each row in window_sums, the last one's last; empty: 1

  // Mean and covariance of the queries before rotation, over all computed prompt tokens but the first future_skip,
  // turned by the mean rotation of the next `future` positions; 0: not requested.
  int32_t future = 0;
  int32_t future_skip = 0;

  bool needs_all_rows() const { return all_sums || all_max || band > 0; }
  bool any() const {
    return needs_all_rows() || future > 0 ||
           ((window > 0 || replay.piece > 0) && (window_queries || window_sums || window_max || window_counts));
  }
  // Whether the capture requires the whole prompt, with nothing evicted before its end.
  bool needs_whole_prompt() const { return needs_all_rows() || replay.piece > 0; }
  // Extends this request by what `other` asks for and returns true if one pass can answer both.
  bool join(const CaptureRequest& other);
  // Whether this request covers everything `other` asks for.
  bool answers(const CaptureRequest& other) const;
  bool operator==(const CaptureRequest&) const = default;
};

// Standard Gumbel noise of a slot: the same for the same token, layer and kv head.
float gumbel_noise(uint64_t seed, int32_t layer, int32_t head, int32_t token);

// One layer of one sequence, Hk kv heads. A column is a slot of the head, in the order of the cache; there are at most
// n_columns. w rows of the window were computed.
struct LayerCapture {
  Tensor all_sums, band_sums, all_max;  // [Hk, n_columns] f32, where requested
  Tensor window_sums, window_max;       // [Hk, n_columns] f32
  Tensor below_counts, seen_counts;     // [Hk, n_columns] f32: rows whose A is small, rows that see the slot
  Tensor window_queries;                // [w, H, d] compute dtype
  std::vector<int32_t> window_places;   // [w] of the rows
  Tensor future_mean;                   // [H, d] f32
  Tensor future_covariance;             // [H, d, d] f32
  float scale = 1.0f;                   // on the logits
  std::vector<float> sink_logits;       // [H] or empty: AttentionArgs has them
  Buffer storage;
};

struct Capture {
  CaptureRequest request;
  std::vector<LayerCapture> layers;
  std::string problem;  // not empty: why the capture is not available
};

// Adds `request` to the first entry of `all` that it can join, else appends it; returns its index.
size_t join(std::vector<CaptureRequest>& all, const CaptureRequest& request);
// The first capture that answers `request`; there must be one.
const Capture& answering(std::span<const Capture* const> captures, const CaptureRequest& request);

}  // namespace vlcache
