// Formats a string by printf's rules.
#pragma once

#include <string>
#include <string_view>

namespace vlcache {

[[gnu::format(printf, 1, 2)]] std::string format(const char* pattern, ...);

// The text with each `part` (not empty) replaced, from the left; in linear time, where std::string::replace moves the
// rest of the text each time.
std::string with_replaced(std::string_view text, std::string_view part, std::string_view by);

}  // namespace vlcache
