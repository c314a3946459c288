// Texts of JSON that others wrote, in which any field may have any type.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace vlcache {

// The text of a field; "" if `value` is no object, or has no such field, or one that is no string.
std::string text_in(const nlohmann::ordered_json& value, std::string_view key);

}  // namespace vlcache
