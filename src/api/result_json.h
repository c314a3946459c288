// Writes an answer as JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "engine/cache_totals.h"

namespace vlcache {

// "the answer ended within 64 tokens; --kv draft compresses the prompt": why all of the KV is left although a policy
// was chosen; empty otherwise. `draft` is how the user names the other policy.
std::string not_compressed_text(const KvReport& kv, std::string_view draft);
// The object that `run --json` prints.
nlohmann::ordered_json result_json(const GenerateResult& result, const CacheTotals& totals);
// What a server's answer has besides OpenAI's fields: {kv, cache, timings_ms}; if `explain`, also the slots of every
// head, the tokens kept of the images, and reasons.
nlohmann::ordered_json served_json(const GenerateResult& result, bool explain,
                                   const std::vector<std::string>& notes = {});
// Of the caches since the start.
nlohmann::ordered_json totals_json(const CacheTotals& totals);

}  // namespace vlcache
