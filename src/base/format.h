// Formats a string by printf's rules.
#pragma once

#include <string>

namespace vlcache {

[[gnu::format(printf, 1, 2)]] std::string format(const char* pattern, ...);

}  // namespace vlcache
