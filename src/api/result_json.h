// An answer as JSON.
#pragma once

#include <nlohmann/json.hpp>

#include "engine/cache_totals.h"

namespace vlcache {

// The object that `run --json` prints.
nlohmann::ordered_json result_json(const GenerateResult& result, const CacheTotals& totals);
// What a server's answer says beside OpenAI's fields: {kv, cache, timings_ms}; slots of every head, what is left of the
// pictures and reasons if they are to be explained.
nlohmann::ordered_json served_json(const GenerateResult& result, bool explain);
// Of the caches since the start.
nlohmann::ordered_json totals_json(const CacheTotals& totals);

}  // namespace vlcache
