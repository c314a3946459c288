// Trace: a recorded stream of requests.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "reuse/choose/reuse_rules.h"
#include "reuse/prefix/prefix_tree.h"

namespace vlcache {

// An image of a prompt: tokens [begin, begin + n_tokens). Equal ids stand for equal pixels.
struct TraceImage {
  int64_t id = 0;
  int64_t begin = 0, n_tokens = 0;
  int64_t end() const { return begin + n_tokens; }
  TokenRange range() const { return {begin, end()}; }
};

// A line of a trace (the format of Mooncake's, kvcache-ai/Mooncake): {"timestamp": ms, "input_length": tokens,
// "output_length": tokens, "hash_ids": [one per block of the prompt]}; equal ids stand for equal blocks after equal
// beginnings. Beyond that format: "session", a number that the requests of a conversation share, and "images":
// [{"id", "tokens", "at": the token where it begins; by default where the one before it ends, or 0}].
struct TraceRequest {
  int64_t timestamp = 0;
  int64_t session = -1;  // -1: none is given
  int64_t n_tokens = 0, n_answer = 0;
  std::vector<Element> blocks;
  std::vector<TraceImage> images;  // in the order of the prompt, none in another
};

struct Trace {
  std::vector<TraceRequest> requests;
  std::vector<std::string> problems;  // of lines that were left out
};

// `block_tokens`: tokens of a block, with which every line must agree; its last block may be shorter. `file` is for
// messages. A broken line becomes a problem; the others are still read.
Trace parse_trace(const std::string& text, const std::string& file, int64_t block_tokens);

}  // namespace vlcache
