// The settings of a quantised checkpoint in one spelling, whichever program wrote them and by whatever name it calls
// itself.
#pragma once

#include <string>
#include <string_view>

#include "base/json.h"

namespace vlcache {

// `settings`, an object, in which numbers and booleans that are written as text or as other numbers ("4", 4.0, "True",
// 1) are numbers and booleans, and names are written small. Values that cannot be meant so stay as they are, for the
// errors of the key's reader.
Json plain_settings(const Json& settings);

// The method of plain settings, "awq": quant_method, else the method whose keys they have, else `fallback`.
std::string quant_method_of(const JsonObject& settings, std::string_view fallback);

// Plain settings of AutoRound as settings of the method whose tensors it writes: their quant_method is "gptq" or "awq".
// Throws Error(kUnsupported) naming another packing_format or data_type.
Json auto_round_settings(const JsonObject& settings);

}  // namespace vlcache
