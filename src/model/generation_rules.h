// Reads the rules for an answer's tokens from generation_config.json, and names the keys that would change answers but
// are not applied.
#pragma once

#include "base/json.h"
#include "model/config.h"

namespace vlcache {

// Sets stop_strings, suppress_tokens, begin_suppress_tokens, bad_words_ids, no_repeat_ngram_size and not_applied.
// Throws nothing for wrong values: checkpoints have loaded with them, so they are named in not_applied.
void read_generation_rules(const JsonObject& file, int64_t vocab_size, GenerationDefaults& defaults);

}  // namespace vlcache
