// An answer as JSON.
#pragma once

#include <nlohmann/json.hpp>

#include "engine/request.h"

namespace vlcache {

// The object that `run --json` prints.
nlohmann::ordered_json result_json(const GenerateResult& result);

}  // namespace vlcache
