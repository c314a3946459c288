// Trace: a recorded stream of requests, replayed through the prefix tree without a model, to count what would have been
// hits.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "reuse/prefix_tree.h"

namespace vlcache {

// A line of a trace (the format of Mooncake's, kvcache-ai/Mooncake): {"timestamp": ms, "input_length": tokens,
// "hash_ids": [one per block of the prompt]}; equal ids stand for equal blocks after equal beginnings.
struct TraceRequest {
  int64_t timestamp = 0;
  int64_t n_tokens = 0;
  std::vector<Element> blocks;
};

struct Trace {
  std::vector<TraceRequest> requests;
  std::vector<std::string> problems;  // of lines that were left out
};

// `block_tokens`: tokens of a block, with which every line must agree; its last block may be shorter. `file` is for
// messages. A broken line becomes a problem; the others are still read.
Trace parse_trace(const std::string& text, const std::string& file, int64_t block_tokens);

struct ReplayResult {
  int64_t n_blocks = 0, n_hits = 0;
  double rate() const { return n_blocks == 0 ? 0 : static_cast<double>(n_hits) / static_cast<double>(n_blocks); }
};

// Every request hits the cached part of its beginning and stores all of its blocks; then the excess is evicted.
// `capacity` in blocks; 0: no limit.
ReplayResult replay(const Trace& trace, EvictionClock& clock, int64_t capacity);

}  // namespace vlcache
