// JSON whose integers keep their digits: those beyond 64 bits, which nlohmann's parser rounds to a double, are held as
// their digits in a binary value.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace vlcache {

// As parse_ordered_json. Throws Error(kMemory) beyond max_values members and items.
nlohmann::ordered_json parse_exact_json(std::string_view text, std::string_view where, int64_t max_values = INT64_MAX);
// The digits of such an integer; empty for any other value.
std::string exact_digits(const nlohmann::ordered_json& value);
// The text of a value, invalid UTF-8 replaced.
std::string dump_exact_json(const nlohmann::ordered_json& value);
// The value with such integers rounded to doubles, as other code reads numbers.
nlohmann::ordered_json with_plain_numbers(nlohmann::ordered_json value);

}  // namespace vlcache
