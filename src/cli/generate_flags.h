// Flags of generation, shared by `run` and `chat`.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/flags.h"
#include "cli/reuse_choice.h"
#include "engine/cache_totals.h"

namespace vlcache {

struct GenerateFlags {
  int max_tokens = 256;
  std::optional<float> temperature, top_p, min_p, repetition_penalty;
  std::optional<int> top_k;
  float presence_penalty = 0, frequency_penalty = 0;
  uint64_t seed = 0;
  std::vector<std::string> stop;
  std::vector<int> stop_tokens;
  bool ignore_eos = false;
  ReuseFlags reuse;
  bool explain = false;
  std::string query_aware = "on";
  bool evict_while_prefill = false;
  int logprobs = -1;
};

void add_generate_flags(const Command& command, GenerateFlags& flags);

// Tells on stderr what is to be known about reuse, where something is.
void warn(const ReuseChoice& reuse);

// What was not given comes from the checkpoint's generation_config.json: its penalties always, its sampling if it says
// do_sample.
GenerateOptions generate_options(const GenerateFlags& flags, const GenerationDefaults& defaults);

// "vision 12 ms (256 tokens) | first token 80 ms (281 prompt tokens, 3900/s) | 14 tokens, 410/s | KV 1.2 MiB (full)"
std::string summary(const GenerateResult& result);

// What was reused and why not more, and what the caches hold, a line each:
// "prefix: 412 of 981 tokens were there", "image 1: 2304 tokens from ram, 58 of them computed anew".
std::string explanation(const GenerateResult& result, const CacheTotals& totals);

}  // namespace vlcache
