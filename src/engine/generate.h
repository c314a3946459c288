// Requests to answers: prefill in chunks, decode in a batch, stop where asked, measure on the way.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "engine/sampler.h"

namespace vlcache {

struct GenerateOptions {
  SamplingParams sampling;
  int32_t max_tokens = 256;
  bool ignore_eos = false;
  std::vector<std::string> stop;     // the text ends before the first of these
  std::vector<int32_t> stop_tokens;  // end the generation besides the model's own
};

// All optional. Called from the generating thread.
struct GenerateCallbacks {
  std::function<void(std::string_view text)> on_text;               // complete UTF-8, in order
  std::function<void(int32_t n_done, int32_t n_total)> on_prefill;  // prompt tokens
  std::function<bool()> cancelled;                                  // asked before every step
};

struct Timings {
  double load_ms = 0;
  double vision_ms = 0;   // encoder and projector
  double prefill_ms = 0;  // prompt tokens through the decoder
  double ttft_ms = 0;     // from the request to its first token: vision, waiting and prefill
  double decode_ms = 0;   // from the first token to the last
};

struct KvReport {
  std::string mode;
  int64_t bytes = 0;  // pages held at the end
  int64_t peak_bytes = 0;
  std::vector<std::vector<int32_t>> slots;  // [layer][kv head]
};

struct GeneratedToken {
  int32_t id = 0;
  float logprob = 0;
  std::vector<TokenLogprob> top;
};

struct GenerateResult {
  std::string text;                    // special tokens left out
  std::vector<GeneratedToken> tokens;  // the stop token included
  bool has_logprobs = false;           // asked for
  std::string finish_reason;           // "stop", "length" or "cancelled"
  int32_t n_prompt = 0;
  int32_t n_vision = 0;
  Timings timings;
  KvReport kv;
};

// One request of a batch: a sequence with pending prompt tokens, kept by the caller (who may go on with it).
struct GenerateItem {
  Sequence* sequence = nullptr;
  GenerateOptions options;
  GenerateCallbacks callbacks;
};

// Runs all items to their ends in one batch; results in order. Throws Error(kInput) for options out of range,
// Error(kMemory) when the KV pool is exhausted (every sequence of the batch is unusable then).
std::vector<GenerateResult> generate(Engine& engine, std::span<GenerateItem> items);

// Throws Error(kInput) unless a prompt of n_tokens leaves room for one token in the model's context.
void check_prompt_fits(const Engine& engine, const CacheMode& mode, int32_t n_tokens);

}  // namespace vlcache
