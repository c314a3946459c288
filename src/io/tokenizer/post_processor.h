// The "post_processor" of tokenizer.json, reduced to what it does to the ids of one text.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"

namespace vlcache {

// Where the text stands in a template; any other entry is the id of a special token.
constexpr int32_t kTextItself = -1;

// The template of a single text, [kTextItself] if there is no post-processor. Throws Error(kUnsupported / kInput).
std::vector<int32_t> parse_post_processor(const Json* json, const std::string& where);

}  // namespace vlcache
