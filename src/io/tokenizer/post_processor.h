// Parses the "post_processor" of tokenizer.json, reduced to its effect on the ids of one text.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"

namespace vlcache {

// Marks the text in a template; any other entry is the id of a special token.
constexpr int32_t kTextItself = -1;

// The template of a single text, [kTextItself] without a post-processor. Throws Error(kUnsupported / kInput).
std::vector<int32_t> parse_post_processor(const Json* json, const std::string& where);

}  // namespace vlcache
