// Reads calls that are written as Python has them: [look(at="sky", n=2), go_to(place=None)], as Llama 3.2 and Llama 4
// do.
#pragma once

#include <cstddef>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "api/tool_calls.h"

namespace vlcache {

// Whether a text may still become such a list of calls, as far as its beginning says: "[", and a name.
bool may_be_pythonic_calls(std::string_view text, const std::set<std::string>& names);

// The calls of a list, or of several in a row, up to the first that is not complete or calls no function of `names`.
// Arguments are literals: strings, numbers, True, False, None (or as JSON has them), lists, tuples and dictionaries.
// `ended`: whether the list is complete and nothing follows it.
std::vector<ToolCall> parse_pythonic_calls(std::string_view text, const std::set<std::string>& names, bool& ended);

}  // namespace vlcache
