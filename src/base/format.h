// printf into a string.
#pragma once

#include <string>

namespace vlcache {

[[gnu::format(printf, 1, 2)]] std::string format(const char* pattern, ...);

}  // namespace vlcache
