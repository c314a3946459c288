// An answer as JSON.
#pragma once

#include <nlohmann/json.hpp>

#include "engine/cache_totals.h"

namespace vlcache {

// The object that `run --json` prints.
nlohmann::ordered_json result_json(const GenerateResult& result, const CacheTotals& totals);

}  // namespace vlcache
